// Package injected knows what a container carries of ours, from its mounts,
// and whether its processes will find that.
package injected

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// Mount is a bind mount; paths are the host's and the container's.
type Mount struct {
	Source, Destination string
	Options             []string
}

// Writable returns the host's paths that a container can write to by its mounts.
func Writable(mounts []Mount) []string {
	var sources []string
	for _, m := range mounts {
		if !slices.Contains(m.Options, "ro") {
			sources = append(sources, m.Source)
		}
	}
	return sources
}

// Files are where our files are in a container that is held to limits. One
// with whole GPUs has none of them.
var Files = []string{
	layout.ContainerLimits,
	layout.ContainerUsage,
	layout.ContainerCUDA,
	layout.ContainerNVML,
	layout.ContainerVgpuctl,
	layout.ContainerPreload,
}

// optional is what a container may lack that an earlier version adjusted. Nothing
// else may be there.
var optional = []string{layout.ContainerStandIns}

// What can be wrong with a container that carries ours. Errors of Check wrap
// one of these.
var (
	// ErrIncomplete: something of ours was never mounted, or cannot be looked
	// for.
	ErrIncomplete = errors.New("not all of nri-vgpu's files are mounted")
	// ErrHidden: the container's processes would find another file.
	ErrHidden = errors.New("another file is there")
)

// Dir is the host's directory of the files that a container carries.
func Dir(mounts []Mount) (dir string, carries bool) {
	for _, m := range mounts {
		if m.Destination == layout.ContainerLimits && filepath.Base(m.Source) == limits.LimitsFile || isAssignment(m) {
			return filepath.Dir(m.Source), true
		}
	}
	return "", false
}

// isAssignment reports whether a mount is all that a container has of ours that
// was given whole GPUs.
func isAssignment(m Mount) bool {
	return m.Destination == layout.ContainerAssignment && filepath.Base(m.Source) == layout.Assignment
}

// Check looks, in the root of a container's first process, whether our files
// are what its processes will find. A link in its image can lead a volume over
// them, which no comparison of paths tells; when a container is about to
// start, its mounts are done, and the kernel tells. proc is /proc of the
// host's pid namespace; a pid of 0 is one that the runtime does not tell.
func Check(proc string, pid int, mounts []Mount) error {
	if pid == 0 || slices.ContainsFunc(mounts, isAssignment) {
		return nil // there is nothing to look at, or nothing to hold it to
	}
	root, err := unix.Open(filepath.Join(proc, strconv.Itoa(pid), "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%w: its mounts cannot be looked at, as process %d has ended or is of another pid namespace (the agent needs hostPID): %w", ErrIncomplete, pid, err)
	}
	defer unix.Close(root)
	for _, destination := range slices.Concat(Files, optional) {
		k := slices.IndexFunc(mounts, func(m Mount) bool { return m.Destination == destination })
		if k < 0 && slices.Contains(optional, destination) {
			continue
		}
		if k < 0 {
			return fmt.Errorf("%w: it was created without %s", ErrIncomplete, destination)
		}
		err := sameFile(root, destination, mounts[k].Source)
		if errors.Is(err, unix.ENOSYS) {
			return nil // a kernel before 5.6
		}
		if err != nil {
			return fmt.Errorf("its %s is not the one that nri-vgpu mounted: %w", destination, err)
		}
	}
	return nil
}

// sameFile wants a path in a container to lead to a file of the host.
func sameFile(root int, path, source string) error {
	fd, err := unix.Openat2(root, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrHidden, err)
	}
	defer unix.Close(fd)
	var inside, outside unix.Stat_t
	if err := unix.Fstat(fd, &inside); err != nil {
		return fmt.Errorf("%w: %w", ErrHidden, err)
	}
	if err := unix.Stat(source, &outside); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrHidden, source, err)
	}
	if inside.Dev != outside.Dev || inside.Ino != outside.Ino {
		return ErrHidden
	}
	return nil
}
