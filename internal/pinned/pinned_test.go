// SPDX-License-Identifier: Apache-2.0

package pinned

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

const patience = 30 * time.Second

// write creates a file and its directory.
func write(t *testing.T, path string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("content"), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// tenant opens a file as root of a container can, until the test ends.
func tenant(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// lease changes the lease on an open file.
func lease(f *os.File, kind int) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, kind)
	return err
}

// start keeps the files of a directory open until the test ends.
func start(t *testing.T, dir string) *Files {
	t.Helper()
	f := New(func() string { return dir }, slog.New(slog.DiscardHandler))
	go f.Run(t.Context())
	return f
}

func (f *Files) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.open)
}

// TestNoWriteLeaseOnOpenFiles checks that a tenant gets no write lease on a file, wherever in the
// directory and whenever the file appears.
func TestNoWriteLeaseOnOpenFiles(t *testing.T) {
	dir := t.TempDir()
	first, later := filepath.Join(dir, "1", "libcuda.so.1"), filepath.Join(dir, "1", "drivers", "a", "libcuda.so.1")
	write(t, first)
	attacker := tenant(t, first)
	if err := errors.Join(lease(attacker, unix.F_WRLCK), lease(attacker, unix.F_UNLCK)); err != nil {
		t.Fatal(err)
	}
	f := start(t, dir)
	refused := func(path string) {
		t.Helper()
		attacker := tenant(t, path)
		eventually.Holds(t, patience, "no write lease on "+path, func() bool {
			err := lease(attacker, unix.F_WRLCK)
			if err == nil {
				err = lease(attacker, unix.F_UNLCK)
			}
			return errors.Is(err, unix.EAGAIN)
		})
	}
	refused(first)
	write(t, later)
	f.Poke()
	refused(later)
}

// TestALeaseFromBefore checks that a tenant cannot keep a lease that it took before the files were
// opened, although it renews the lease.
func TestALeaseFromBefore(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "leased"), filepath.Join(dir, "other")
	write(t, path)
	write(t, other)
	attacker := tenant(t, path)
	if err := lease(attacker, unix.F_WRLCK); err != nil {
		t.Fatal(err)
	}
	f := start(t, dir)
	eventually.Holds(t, patience, "the other file is open", func() bool { return f.count() == 1 })
	// While an open waits, the kernel refuses another lease.
	eventually.Holds(t, patience, "an open waits", func() bool { return errors.Is(lease(attacker, unix.F_WRLCK), unix.EAGAIN) })
	if err := lease(attacker, unix.F_UNLCK); err != nil {
		t.Fatal(err)
	}
	if err := lease(attacker, unix.F_WRLCK); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("the tenant renewed its lease: %v", err)
	}
	eventually.Holds(t, patience, "the file is open", func() bool { return f.count() == 2 })
}

// TestReplacedAndRemovedFiles checks that files outside the directory are closed, and that a file that
// replaces another is opened.
func TestReplacedAndRemovedFiles(t *testing.T) {
	dir := t.TempDir()
	kept, gone := filepath.Join(dir, "kept"), filepath.Join(dir, "gone", "file")
	write(t, kept)
	write(t, gone)
	f := New(func() string { return dir }, slog.New(slog.DiscardHandler))
	t.Cleanup(f.close)
	if err := f.look(); err != nil || f.count() != 2 {
		t.Fatalf("%d files are open, %v", f.count(), err)
	}
	before := f.open[kept]
	write(t, kept+"-new")
	if err := errors.Join(os.Rename(kept+"-new", kept), os.RemoveAll(filepath.Dir(gone))); err != nil {
		t.Fatal(err)
	}
	if err := f.look(); err != nil || f.count() != 1 || f.open[kept] == before {
		t.Errorf("%d files are open, the replaced file %t: %v", f.count(), f.open[kept] == before, err)
	}
	if _, err := before.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the replaced file is not closed: %v", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := f.look(); err != nil || f.count() != 0 {
		t.Errorf("%d files of a removed directory are open, %v", f.count(), err)
	}
}

// TestNoDirectory checks that no directory is not an error.
func TestNoDirectory(t *testing.T) {
	f := New(func() string { return "" }, slog.New(slog.DiscardHandler))
	if err := f.look(); err != nil || f.count() != 0 {
		t.Errorf("%d files are open, %v", f.count(), err)
	}
}
