// SPDX-License-Identifier: Apache-2.0

// Package usagefs creates a file system for each container's usage page. The file system is in
// memory and has room for the page alone. A tenant that extends the page thus takes no further
// memory from the node.
package usagefs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	// source is the name of the file systems in mountinfo.
	source = "nri-vgpu-usage"
	// inodes is the number of inodes: for the root, the page and one more. The kernel counts each
	// KiB of extended attributes as an inode, and a security module may label the page.
	inodes = 3
)

// Mounts are the file systems of a node's usage pages. Each file system is mounted at <pod
// UID>/<container>/<instance>, which only root can access. The agent mounts a file system in the
// agent's mount namespace. Mount propagation adds the mount to the node's namespace, where the
// mount remains after the agent exits.
type Mounts struct {
	// Dir is the directory of the mounts.
	Dir  string
	name string
	size int64
	// swaps reports whether the kernel lacks the option noswap, which Linux 6.4 introduced.
	swaps atomic.Bool
}

// New returns the file systems below a directory. Each file system has room for one file with this
// name and size.
func New(dir, name string, size int64) *Mounts {
	return &Mounts{Dir: dir, name: name, size: size}
}

// Make mounts a new file system for a container, and returns its new, empty file. File systems of
// earlier instances of the container stay until Keep.
func (m *Mounts) Make(podUID, container string) (*os.File, error) {
	parent := filepath.Join(m.Dir, podUID, container)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return nil, fmt.Errorf("make the usage page's directory: %w", err)
	}
	dir, err := os.MkdirTemp(parent, "")
	if err != nil {
		return nil, fmt.Errorf("make the usage page's directory: %w", err)
	}
	if err := m.mount(dir); err != nil {
		err = fmt.Errorf("mount the usage page's file system on %s (the agent has to be privileged): %w", dir, err)
		return nil, errors.Join(err, Remove(dir))
	}
	page, err := os.OpenFile(filepath.Join(dir, m.name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create the usage page: %w", err), Remove(dir))
	}
	return page, nil
}

func (m *Mounts) mount(dir string) error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	options := fmt.Sprintf("mode=0700,nr_inodes=%d,size=%d", inodes, m.size)
	if !m.swaps.Load() {
		err := unix.Mount(source, dir, "tmpfs", flags, options+",noswap")
		if !errors.Is(err, unix.EINVAL) {
			return err
		}
		m.swaps.Store(true)
	}
	return unix.Mount(source, dir, "tmpfs", flags, options)
}

// Discard removes the file system of a page that Make returned.
func (m *Mounts) Discard(page *os.File) error { return Remove(filepath.Dir(page.Name())) }

// Keep removes all file systems of a container except the page's.
func (m *Mounts) Keep(podUID, container string, page *os.File) error {
	own := filepath.Dir(page.Name())
	return RemoveBut(filepath.Join(m.Dir, podUID, container), func(path string) bool { return path == own })
}

// RemoveBut removes the entries of a directory, as Remove does, except those for which keep returns
// true.
func RemoveBut(dir string, keep func(path string) bool) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list usage pages: %w", err)
	}
	var problems []error
	for _, entry := range entries {
		if path := filepath.Join(dir, entry.Name()); !keep(path) {
			problems = append(problems, Remove(path))
		}
	}
	return errors.Join(problems...)
}

// Remove removes all file systems of a container, or of a pod.
func (m *Mounts) Remove(podUID string, container ...string) error {
	return Remove(filepath.Join(append([]string{m.Dir, podUID}, container...)...))
}

// Remove removes a directory, and unmounts all mounts on or below it. Processes that use a page
// keep the page. The mounts of this namespace may not propagate to the node's namespace. Remove
// then also removes the node's mounts, because the kernel detaches a mount when its directory is
// removed.
func Remove(dir string) error {
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		return unmount(path)
	})
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.RemoveAll(dir)
	}
	if err != nil {
		return fmt.Errorf("remove usage pages: %w", err)
	}
	return nil
}

// unmount removes all mounts on a directory.
func unmount(dir string) error {
	for {
		err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) { // nothing is mounted on dir
			return nil
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
	}
}
