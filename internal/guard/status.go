// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
)

// statusInterval is the interval at which the guard checks that its status file exists.
// statusInterval is also the greatest delay with which a stand-in reports that the guard has
// exited.
const statusInterval = 2 * time.Second

// keepStatus writes the status file of the running guard, and checks the file until ctx ends.
func (g *Guard) keepStatus(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-g.configured:
	}
	var held *os.File
	defer func() { held.Close() }() // Close accepts nil
	ticker := time.NewTicker(statusInterval)
	defer ticker.Stop()
	for {
		if r, installed := g.rules(); installed {
			held = g.renewStatus(r.Settings, held)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// renewStatus writes and locks the status file unless held already locks it. renewStatus returns
// nil while the guard of an earlier runtime still holds the lock.
func (g *Guard) renewStatus(s guardfile.Settings, held *os.File) *os.File {
	path := paths.GuardStatus(s.RunDir)
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
	data, err := json.Marshal(guardfile.Status{Version: version.Version, PID: os.Getpid(), Runtime: g.runtime()})
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
