// SPDX-License-Identifier: Apache-2.0

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

// maxSize bounds the size of a report that Read accepts, in bytes. A report of 16 GPUs has about 6
// KiB.
const maxSize = 1 << 20

// Errors of Read wrap one of these errors, or fs.ErrNotExist if the file is missing.
var (
	// ErrForeign means that the file is JSON but not a report.
	ErrForeign = errors.New("not a node report")
	// ErrVersion means that the file has the format of another version of nri-vgpu. Read returns
	// the fields that every format has: the version and the heartbeat.
	ErrVersion = errors.New("node report has another format version")
	// ErrCorrupt means that the file is truncated, too long or not JSON.
	ErrCorrupt = errors.New("node report is corrupt")
)

// Write atomically replaces the report at path: a reader sees the old report or the new report, and
// never a part of a report. Write sets the version. The file is world-readable, because the patcher
// runs as another user.
func Write(path string, report Report) error {
	report.Version = FormatVersion
	data, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return fmt.Errorf("encode node report: %w", err)
	}
	// The agent rewrites the report every few seconds. The report need not survive a crash of the
	// machine, but a reader must never see a half-written report.
	err = renameio.WriteFile(path, append(data, '\n'), 0o644, renameio.IgnoreUmask())
	if err != nil {
		return fmt.Errorf("write node report: %w", err)
	}
	return nil
}

// Read returns the report at path.
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
	// Unmarshal ignores unknown fields. A newer agent may add fields within a format version, and
	// an older patcher must not withdraw the node because of these fields.
	var report Report
	if err := json.Unmarshal(data, &report); err != nil {
		return Report{}, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	return report, nil
}

// readHead checks the fields that every version of the format has. For a report of another version,
// readHead returns these fields with an error.
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
		return Report{}, fmt.Errorf("%w: the report has no version", ErrForeign)
	}
	if head.Heartbeat == nil || head.Heartbeat.IsZero() {
		return Report{}, fmt.Errorf("%w: the report has no heartbeat", ErrForeign)
	}
	if *head.Version != FormatVersion {
		return Report{Version: *head.Version, Heartbeat: *head.Heartbeat},
			fmt.Errorf("%w: %d, and this program reads %d", ErrVersion, *head.Version, FormatVersion)
	}
	return Report{}, nil
}
