package injected

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

	"github.com/nri-vgpu/nri-vgpu/pkg/deadline"
)

const (
	// lookPatience is how long a look-up may take: a handler has to answer within
	// a second.
	lookPatience = 500 * time.Millisecond
	// maxStuck is how many look-ups may hang at once. Each keeps a thread.
	maxStuck = 8
	// tries is how often a look-up is begun anew that a rename or a mount elsewhere
	// has disturbed.
	tries = 16
	// resolveCached has openat2 fail with EAGAIN where it would have to wait.
	resolveCached = 0x20
)

// Looks looks up our files in containers' roots. What the kernel has in memory is
// looked up at once; for all else a file system may have to be asked, which may never
// answer: that is done aside, with a deadline, and a few at a time. A container whose
// file systems answer needs no such place, so none can be kept from it.
type Looks struct {
	bound *deadline.Bound
	mu    sync.Mutex
	// pending are the containers for which a file system is being asked.
	pending map[string]bool
}

// NewLooks returns one that has nothing to look up.
func NewLooks() *Looks {
	return &Looks{bound: deadline.New(lookPatience, maxStuck), pending: map[string]bool{}}
}

// Check looks, in the root of a container's first process, whether our files
// are what its processes will find, and whether they stay there. A link in its image
// can lead a volume over them or above them, which no comparison of paths tells; when
// a container is about to start, its mounts are done, and the kernel tells. proc is
// /proc of the host's pid namespace; a pid of 0 is one that the runtime does not tell.
// container is any name of the container.
func (l *Looks) Check(container, proc string, pid int, mounts []Mount) error {
	if pid == 0 || slices.ContainsFunc(mounts, isAssignment) {
		return nil // there is nothing to look at, or nothing to hold it to
	}
	for _, destination := range Files {
		if !slices.ContainsFunc(mounts, func(m Mount) bool { return m.Destination == destination }) {
			return fmt.Errorf("%w: it was created without %s", ErrIncomplete, destination)
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

// CheckRunning looks, from the root of the mount namespace of a process in a container
// that runs, whether our files are what a program finds that is started there. How they
// came to their places is of no matter then.
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
				return unix.EAGAIN // a volume, which may hang
			}
			return same(fd, err, m, true)
		})
	})
}

// look looks in what the kernel has in memory, which never waits, and then if need be
// in file systems. A kernel before 5.12 cannot do the first, one before 5.6 neither.
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

// ask asks file systems: of each container one at a time.
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
		return 0, fmt.Errorf("%w: its mounts cannot be looked at, as process %d has ended or is of another pid namespace (the agent needs hostPID): %w", ErrIncomplete, pid, err)
	}
	return root, nil
}

// climb opens the root of a mount namespace, from a directory in it that a process may
// have as its root.
func climb(dir int, resolve uint64) (int, error) {
	const levels = 1024
	top, err := openat2(dir, strings.Repeat("../", levels), unix.O_DIRECTORY, resolve)
	if passing(err) {
		return 0, err
	}
	if err != nil {
		return 0, fmt.Errorf("%w: the root of a process cannot be looked at: %w", ErrHidden, err)
	}
	return top, nil
}

// each asks about each of ours.
func each(mounts []Mount, ask func(Mount) error) error {
	for _, m := range Ours(mounts) {
		err := ask(m)
		if passing(err) || errors.Is(err, ErrVolume) {
			return err
		}
		if err != nil {
			return fmt.Errorf("its %s is not the one that nri-vgpu mounted: %w", m.Destination, err)
		}
	}
	return nil
}

// passing reports whether an error is about the way of looking and not about what was
// found.
func passing(err error) bool {
	return errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINVAL)
}

// find opens what a container's processes find at a path. What is at the path itself
// may be another mount, and is not followed if it is a link.
func find(root int, file string, resolve uint64) (int, error) {
	dir, err := openat2(root, path.Dir(file), unix.O_DIRECTORY, unix.RESOLVE_IN_ROOT|resolve)
	if err != nil {
		return 0, err
	}
	defer unix.Close(dir)
	return openat2(dir, path.Base(file), unix.O_NOFOLLOW, resolve&resolveCached)
}

func openat2(dir int, name string, flags, resolve uint64) (fd int, err error) {
	// Relative, so that the kernel does not begin by asking the root's file system
	// whether the root is still there.
	name = strings.TrimPrefix(name, "/")
	for range tries {
		fd, err = unix.Openat2(dir, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | flags, Resolve: resolve})
		if !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	return fd, err
}

// same wants what was found to be a file of the host. Where that is gone, as of a
// version that was removed, a container that runs has to have a mount there: without
// it, only the container's own files are left.
func same(fd int, err error, m Mount, running bool) error {
	if passing(err) {
		return err
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrHidden, err)
	}
	defer unix.Close(fd)
	var inside, outside unix.Statx_t
	// What is known of it without asking its file system is enough.
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

// mountRoot reports whether something is mounted where a file was found, as far as the
// kernel tells: from 5.8 on.
func mountRoot(stat unix.Statx_t) bool {
	return (stat.Attributes|^stat.Attributes_mask)&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// volumeAbove names the volume that holds a file: the first directory above it that is
// not on the root's mount.
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
