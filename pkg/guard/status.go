package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
	"github.com/nri-vgpu/nri-vgpu/pkg/version"
)

// statusInterval is how often a status file that is gone is made again, and how
// late a stand-in says that the guard has ended.
const statusInterval = 2 * time.Second

// Status is what a running guard says of itself.
type Status struct {
	Version string `json:"version"`
	PID     int    `json:"pid"`
	// Runtime is what the runtime says of itself.
	Runtime string `json:"runtime"`
}

// Loaded tells whether the runtime has loaded the guard, and which one. A
// guard holds a lock on its status file as long as it lives.
func Loaded(runDir string) (Status, bool, error) {
	var s Status
	f, err := os.Open(layout.GuardStatus(runDir))
	if errors.Is(err, fs.ErrNotExist) {
		return s, false, nil
	}
	if err != nil {
		return s, false, fmt.Errorf("read the guard's status: %w", err)
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_RDLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return s, false, fmt.Errorf("see whether the guard runs: %w", err)
	}
	if lock.Type == unix.F_UNLCK {
		return s, false, nil
	}
	// It may be about to be written.
	_ = json.NewDecoder(f).Decode(&s)
	return s, true, nil
}

// keepStatus says that the guard runs, until ctx ends.
func (g *Guard) keepStatus(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-g.configured:
	}
	var held *os.File
	defer func() { held.Close() }() // of nil, too
	ticker := time.NewTicker(statusInterval)
	defer ticker.Stop()
	for {
		if s, installed := g.settings(); installed {
			held = g.renewStatus(s, held)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// renewStatus writes the status file, and holds it, where it is not held
// already. A guard that an earlier runtime started may hold it a moment longer.
func (g *Guard) renewStatus(s Settings, held *os.File) *os.File {
	path := layout.GuardStatus(s.RunDir)
	if held != nil {
		have, haveErr := held.Stat()
		want, wantErr := os.Stat(path)
		if haveErr == nil && wantErr == nil && os.SameFile(have, want) {
			return held
		}
		held.Close()
	}
	if err := os.MkdirAll(s.RunDir, 0o755); err != nil {
		return nil
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		f.Close()
		return nil
	}
	data, err := json.Marshal(Status{Version: version.Version, PID: os.Getpid(), Runtime: g.runtime()})
	if err == nil {
		err = errors.Join(f.Truncate(0), writeAt(f, append(data, '\n')))
	}
	if err != nil {
		f.Close()
		return nil
	}
	return f
}

func writeAt(f *os.File, data []byte) error {
	_, err := f.WriteAt(data, 0)
	return err
}
