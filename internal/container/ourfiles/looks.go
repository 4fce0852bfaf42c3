// SPDX-License-Identifier: Apache-2.0

package ourfiles

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/deadline"
)

const (
	// lookPatience is the time that a look-up may take: a handler has to answer within a second.
	lookPatience = 500 * time.Millisecond
	// maxStuck is the number of look-ups that may hang at once. Each hanging look-up keeps a
	// thread.
	maxStuck = 8
	// tries is the number of attempts of a look-up that a rename or a mount elsewhere disturbs.
	tries = 16
	// resolveCached makes openat2 fail with EAGAIN if it would have to wait.
	resolveCached = 0x20
)

// Looks looks up our files in containers' roots. Looks resolves paths in the kernel's cache at
// once. A look-up of another path needs a file system, which may never answer. Looks runs a bounded
// number of look-ups in file systems in the background, each with a deadline. A container whose
// file systems answer needs no background look-up, so other containers cannot block its look-ups.
type Looks struct {
	bound *deadline.Bound
	mu    sync.Mutex
	// pending are the containers with a look-up in a file system.
	pending map[string]bool
}

// NewLooks returns a Looks without pending look-ups.
func NewLooks() *Looks {
	return &Looks{bound: deadline.New(lookPatience, maxStuck), pending: map[string]bool{}}
}

// Check checks, from the root of a container's first process, whether the container's processes
// find our files and whether the files stay in place. A link in the image can lead a volume over or
// above our files, which no comparison of paths detects. A container's mounts exist before the
// container starts, so the kernel can resolve the paths. The parameter proc is /proc of the host's
// pid namespace, and container is any unique name of the container. A pid of 0 means that the
// runtime did not report the pid.
func (l *Looks) Check(container, proc string, pid int, mounts []Mount) error {
	if pid == 0 || slices.ContainsFunc(mounts, isAssignment) {
		return nil // no pid is known, or the container has whole GPUs
	}
	for _, destination := range Required {
		if !slices.ContainsFunc(mounts, func(m Mount) bool { return m.Destination == destination }) {
			return fmt.Errorf("%w: the container was created without %s", ErrIncomplete, destination)
		}
	}
	return l.look(container, func(resolve uint64) error {
		root, err := openRoot(proc, pid)
		if err != nil {
			return err
		}
		defer unix.Close(root)
		return each(mounts, func(m Mount) error {
			fd, err := find(root, m.Destination, unix.RESOLVE_NO_XDEV|resolve)
			if errors.Is(err, unix.EXDEV) {
				return volumeAbove(root, m.Destination, mounts, resolve)
			}
			return same(fd, err, m, false)
		})
	})
}

// CheckRunning checks, from the root of a process's mount namespace, whether a program that starts
// in the running container finds our files. The path through which the program reaches the files
// does not matter.
func (l *Looks) CheckRunning(container, proc string, pid int, ours []Mount) error {
	return l.look(container, func(resolve uint64) error {
		root, err := openRoot(proc, pid)
		if err != nil {
			return err
		}
		defer unix.Close(root)
		top, err := climb(root, resolve)
		if err != nil {
			return err
		}
		defer unix.Close(top)
		return each(ours, func(m Mount) error {
			if resolve == 0 {
				fd, err := find(top, m.Destination, 0)
				return same(fd, err, m, true)
			}
			fd, err := find(top, m.Destination, resolve|unix.RESOLVE_NO_XDEV)
			if errors.Is(err, unix.EXDEV) {
				return unix.EAGAIN // the path crosses into a volume, which may hang
			}
			return same(fd, err, m, true)
		})
	})
}

// look searches the kernel's cache, which never waits, and then file systems if necessary. Kernels
// before 5.12 support only the search in file systems. Kernels before 5.6 support no search.
func (l *Looks) look(container string, look func(resolve uint64) error) error {
	err := look(resolveCached)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINVAL) {
		err = l.ask(container, func() error { return look(0) })
	}
	if errors.Is(err, unix.ENOSYS) {
		return nil
	}
	return err
}

// ask runs a look-up in file systems, one at a time for each container.
func (l *Looks) ask(container string, look func() error) error {
	if !l.begin(container) {
		return fmt.Errorf("%w: an earlier look-up has not ended", ErrStuck)
	}
	err, late := deadline.Do(context.Background(), l.bound, func() error {
		defer l.asked(container)
		return look()
	})
	if errors.Is(late, deadline.ErrFull) {
		l.asked(container)
	}
	if late != nil {
		return fmt.Errorf("%w: %w", ErrStuck, late)
	}
	return err
}

func (l *Looks) begin(container string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending[container] {
		return false
	}
	l.pending[container] = true
	return true
}

func (l *Looks) asked(container string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pending, container)
}

func openRoot(proc string, pid int) (int, error) {
	root, err := unix.Open(filepath.Join(proc, strconv.Itoa(pid), "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("%w: process %d has ended or is in another pid namespace (the agent needs hostPID): %w", ErrIncomplete, pid, err)
	}
	return root, nil
}

// climb opens the root of a mount namespace, from a directory in it, for example a process's root.
func climb(dir int, resolve uint64) (int, error) {
	const levels = 1024
	top, err := openat2(dir, strings.Repeat("../", levels), unix.O_DIRECTORY, resolve)
	if passing(err) {
		return 0, err
	}
	if err != nil {
		return 0, fmt.Errorf("%w: open the root of a process's mounts: %w", ErrHidden, err)
	}
	return top, nil
}

// each calls ask for each of our mounts.
func each(mounts []Mount, ask func(Mount) error) error {
	for _, m := range Ours(mounts) {
		err := ask(m)
		if passing(err) || errors.Is(err, ErrVolume) {
			return err
		}
		if err != nil {
			return fmt.Errorf("its %s is not the file that nri-vgpu mounted: %w", m.Destination, err)
		}
	}
	return nil
}

// passing reports whether the look-up itself, and not the files, caused an error.
func passing(err error) bool {
	return errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINVAL)
}

// find opens the file that a container's processes find at a path. The last element may be another
// mount. find does not follow the last element if it is a link.
func find(root int, file string, resolve uint64) (int, error) {
	dir, err := openat2(root, path.Dir(file), unix.O_DIRECTORY, unix.RESOLVE_IN_ROOT|resolve)
	if err != nil {
		return 0, err
	}
	defer unix.Close(dir)
	return openat2(dir, path.Base(file), unix.O_NOFOLLOW, resolve&resolveCached)
}

func openat2(dir int, name string, flags, resolve uint64) (fd int, err error) {
	// A relative name keeps the kernel from asking the root's file system whether the root still
	// exists.
	name = strings.TrimPrefix(name, "/")
	for range tries {
		fd, err = unix.Openat2(dir, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | flags, Resolve: resolve})
		if !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	return fd, err
}

// same checks that a found file is a mount's source on the host. If the source is gone, as after
// the removal of an old version, a running container must still have a mount at the path. Without a
// mount, only the container's own files are left.
func same(fd int, err error, m Mount, running bool) error {
	if passing(err) {
		return err
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrHidden, err)
	}
	defer unix.Close(fd)
	var inside, outside unix.Statx_t
	// Cached attributes suffice, without a request to the file system.
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &inside); err != nil {
		return fmt.Errorf("%w: %w", ErrHidden, err)
	}
	err = unix.Statx(unix.AT_FDCWD, m.Source, unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &outside)
	if running && errors.Is(err, unix.ENOENT) && mountRoot(inside) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrHidden, m.Source, err)
	}
	if inside.Dev_major != outside.Dev_major || inside.Dev_minor != outside.Dev_minor || inside.Ino != outside.Ino {
		return ErrHidden
	}
	return nil
}

// mountRoot reports whether a found file is a mount's root. Kernels before 5.8 do not report roots,
// and mountRoot then returns true.
func mountRoot(stat unix.Statx_t) bool {
	return (stat.Attributes|^stat.Attributes_mask)&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// volumeAbove names the volume that contains a file: the first directory above the file that is not
// on the root's mount.
func volumeAbove(root int, file string, mounts []Mount, resolve uint64) error {
	for k := 1; k < len(file); k++ {
		if file[k] != '/' {
			continue
		}
		fd, err := openat2(root, file[:k], unix.O_DIRECTORY, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_XDEV|resolve)
		if err == nil {
			unix.Close(fd)
			continue
		}
		named := slices.ContainsFunc(mounts, func(m Mount) bool { return path.Clean("/"+m.Destination) == file[:k] })
		return &VolumeError{Volume: file[:k], File: file, Detour: !named}
	}
	return fmt.Errorf("%s: %w", file, ErrVolume)
}
