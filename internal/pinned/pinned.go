// SPDX-License-Identifier: Apache-2.0

// Package pinned keeps the files open that containers have mounted from the node. A process can take a
// lease on a file that its user owns. Root in a container is the owner of the node's files. While a
// process has a write lease, each open of the file waits, up to 45 s, in all containers. The kernel
// grants no write lease on a file that another process has open.
package pinned

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/leased"
	"github.com/nri-vgpu/nri-vgpu/internal/loop"
)

// interval is the time between two searches for new files.
const interval = 5 * time.Second

// Files keeps the files of a directory open.
type Files struct {
	dir  func() string
	log  *slog.Logger
	poke loop.Wakeup
	// failure is the state of Look. Only Run uses failure.
	failure loop.Failure

	mu   sync.Mutex
	open map[string]*os.File // by path
	// waiting are the paths whose open waits for the end of a lease. Each wait takes a thread.
	waiting map[string]bool
}

// New returns Files that keep no file open until Run. dir returns the directory; "" stands for no
// directory.
func New(dir func() string, log *slog.Logger) *Files {
	return &Files{dir: dir, log: log, poke: loop.NewWakeup(), open: map[string]*os.File{}, waiting: map[string]bool{}}
}

// Poke requests an immediate search for new files. Poke never blocks.
func (f *Files) Poke() { f.poke.Signal() }

// Run keeps the files open until ctx ends. Files that appear later are open soon after.
func (f *Files) Run(ctx context.Context) {
	defer f.close()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		if err := f.look(); f.failure.Note(err) == loop.Failed {
			f.log.Warn("failed to keep the node's files open; containers can delay programs of other containers", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-f.poke:
		}
	}
}

// look opens new files, and closes files that are no longer in the directory. look does not wait for
// the end of a lease.
func (f *Files) look() error {
	found := map[string]bool{}
	var problems []error
	if dir := f.dir(); dir != "" {
		problems = append(problems, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // another program removes files
			}
			if err == nil && entry.Type().IsRegular() {
				found[path] = true
				problems = append(problems, f.keep(path))
			}
			return err
		}))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for path, file := range f.open {
		if !found[path] {
			file.Close()
			delete(f.open, path)
		}
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("open the files of %s: %w", f.dir(), err)
	}
	return nil
}

// keep opens a file, unless the file is open. If a process has a lease on the file, keep opens the file
// in the background.
func (f *Files) keep(path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waiting[path] || f.isOpen(path) {
		return nil
	}
	file, err := leased.Open(path, os.O_RDONLY)
	switch {
	case err == nil:
		f.put(path, file)
	case errors.Is(err, leased.Err):
		f.waiting[path] = true
		go f.await(path)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return nil
}

// await opens a file, and waits for the end of a lease. The kernel ends the lease, and grants no other
// lease during the wait.
func (f *Files) await(path string) {
	file, err := os.Open(path)
	f.mu.Lock()
	defer f.mu.Unlock()
	if delete(f.waiting, path); err == nil {
		f.put(path, file)
	}
}

// isOpen reports whether the open file is the file at the path. The caller holds f.mu.
func (f *Files) isOpen(path string) bool {
	file, ok := f.open[path]
	if !ok {
		return false
	}
	have, haveErr := file.Stat()
	want, wantErr := os.Lstat(path)
	return haveErr == nil && wantErr == nil && os.SameFile(have, want)
}

// put stores an open file, and closes an earlier file of the path. The caller holds f.mu.
func (f *Files) put(path string, file *os.File) {
	if before, ok := f.open[path]; ok {
		before.Close()
	}
	f.open[path] = file
}

func (f *Files) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for path, file := range f.open {
		file.Close()
		delete(f.open, path)
	}
}
