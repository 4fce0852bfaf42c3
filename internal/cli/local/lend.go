// SPDX-License-Identifier: Apache-2.0

package local

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/lender"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// lenderFile is the lock file of the process that lends for all groups.
const lenderFile = "lender"

// lend lends idle GPU time among the user's groups if this group has a limit on GPU time. lend also
// writes to each group's page the time that was charged to the other groups. One watcher lends at a
// time. When the lending watcher ends, for any reason, another watcher lends. lend blocks until it
// has stopped lending.
func (g Groups) lend(group string) {
	devices, err := limits.Read(filepath.Join(g.Dir(group), limits.LimitsFile))
	if err != nil || !slices.ContainsFunc(devices, isMetered) {
		return
	}
	lock, err := lockFile(filepath.Join(g.dir, lenderFile), os.O_CREATE, unix.LOCK_EX)
	if err != nil {
		return // the directory was removed
	}
	defer lock.Close()
	lender.New(lender.Options{Dirs: g.dirs, Recent: g.recent, Log: slog.New(slog.DiscardHandler)}).Run(context.Background())
}

// isMetered reports whether a device has a limit on GPU time.
func isMetered(d limits.Device) bool { return d.ComputePPM < limits.NoComputeLimit && !d.MPS }

// dirs returns the directories of all groups.
func (g Groups) dirs() []string {
	entries, _ := os.ReadDir(g.dir)
	var dirs []string
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, g.Dir(e.Name()))
		}
	}
	return dirs
}

// recent reports whether a group was made or removed in the last second.
func (g Groups) recent() bool {
	info, err := os.Stat(g.dir)
	return err == nil && time.Since(info.ModTime()) < time.Second
}
