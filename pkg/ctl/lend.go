package ctl

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/pkg/lender"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// lenderFile is locked by the one process that lends for all groups.
const lenderFile = "lender"

// lend lends idle time among the groups of the user, and tells each what the others were
// charged, if this group has a limit on time. Of the watchers of such groups one does it, and
// the next when that has ended, however it ended. It never returns while it lends.
func (g Groups) lend(group string) {
	devices, err := limits.Read(filepath.Join(g.Dir(group), limits.LimitsFile))
	if err != nil || !slices.ContainsFunc(devices, isMetered) {
		return
	}
	lock, err := lockFile(filepath.Join(g.dir, lenderFile), os.O_CREATE, unix.LOCK_EX)
	if err != nil {
		return // the directory is gone
	}
	defer lock.Close()
	lender.New(lender.Options{Dirs: g.dirs, Recent: g.recent, Log: slog.New(slog.DiscardHandler)}).Run(context.Background())
}

// isMetered reports whether a device has a limit on time.
func isMetered(d limits.Device) bool { return d.ComputePPM < limits.NoComputeLimit && !d.MPS }

// dirs are the directories of all groups.
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

// recent tells whether a group was made or removed in the last second.
func (g Groups) recent() bool {
	info, err := os.Stat(g.dir)
	return err == nil && time.Since(info.ModTime()) < time.Second
}
