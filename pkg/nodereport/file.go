package nodereport

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/google/renameio/v2"
)

// maxSize bounds what Read takes into memory, in bytes. A report of 16 GPUs
// has about 6 KiB.
const maxSize = 1 << 20

// What can be wrong with a report. Errors of Read wrap one of these, or
// fs.ErrNotExist where there is no file.
var (
	// ErrForeign: the file is JSON, but no report.
	ErrForeign = errors.New("not a node report")
	// ErrVersion: another version of nri-vgpu wrote it in another format. Read returns
	// what every format has: its version and its heartbeat.
	ErrVersion = errors.New("node report has another format version")
	// ErrCorrupt: the file is truncated, too long or not JSON.
	ErrCorrupt = errors.New("node report is corrupt")
)

// Write replaces the report at path in one step: a reader sees the old report
// or the new one, never a part. It sets the version itself. The file is
// readable by all, as the patcher runs as another user.
func Write(path string, report Report) error {
	report.Version = FormatVersion
	data, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return fmt.Errorf("encode node report: %w", err)
	}
	// The report is renewed every few seconds: it need not survive a crash of
	// the machine, only never be seen half-written.
	err = renameio.WriteFile(path, append(data, '\n'), 0o644, renameio.IgnoreUmask())
	if err != nil {
		return fmt.Errorf("write node report: %w", err)
	}
	return nil
}

// Read gives the report at path.
func Read(path string) (Report, error) {
	f, err := os.Open(path)
	if err != nil {
		return Report{}, fmt.Errorf("open node report: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return Report{}, fmt.Errorf("read node report: %w", err)
	}
	report, err := parse(data)
	if err != nil {
		return report, fmt.Errorf("%s: %w", path, err)
	}
	return report, nil
}

func parse(data []byte) (Report, error) {
	if len(data) > maxSize {
		return Report{}, fmt.Errorf("%w: longer than %d bytes", ErrCorrupt, maxSize)
	}
	head, err := readHead(data)
	if err != nil {
		return head, err
	}
	// Unknown fields are ignored: a newer agent adds fields within a format
	// version, and an older patcher must not withdraw the node for them.
	var report Report
	if err := json.Unmarshal(data, &report); err != nil {
		return Report{}, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	return report, nil
}

// readHead reads what every version of the format has, before the rest is taken
// at its word.
func readHead(data []byte) (Report, error) {
	var head struct {
		Version   *int       `json:"version"`
		Heartbeat *time.Time `json:"heartbeat"`
	}
	if !json.Valid(data) {
		return Report{}, fmt.Errorf("%w: not JSON", ErrCorrupt)
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return Report{}, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	if head.Version == nil {
		return Report{}, fmt.Errorf("%w: it has no version", ErrForeign)
	}
	if head.Heartbeat == nil || head.Heartbeat.IsZero() {
		return Report{}, fmt.Errorf("%w: it has no heartbeat", ErrForeign)
	}
	if *head.Version != FormatVersion {
		return Report{Version: *head.Version, Heartbeat: *head.Heartbeat},
			fmt.Errorf("%w: %d, and this is %d", ErrVersion, *head.Version, FormatVersion)
	}
	return Report{}, nil
}
