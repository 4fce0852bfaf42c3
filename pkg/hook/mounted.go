package hook

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
)

// ourFiles are where our files are in a container that is held to limits.
// One with whole GPUs has none of them.
var ourFiles = []string{
	layout.ContainerLimits,
	layout.ContainerUsage,
	layout.ContainerCUDA,
	layout.ContainerNVML,
	layout.ContainerVgpuctl,
	layout.ContainerPreload,
}

// checkMounted refuses a container whose processes would find something else
// at our paths than what we mounted there. A link in its image can lead a
// volume over our files, which no comparison of paths tells; when a container
// is about to start, its mounts are done, and the kernel tells. proc is /proc
// of the host's pid namespace.
func (c Container) checkMounted(proc string) error {
	if c.PID == 0 {
		return nil // the runtime does not tell
	}
	if slices.ContainsFunc(c.Mounts, isAssignment) {
		return nil // there is nothing to hold it to
	}
	root, err := unix.Open(filepath.Join(proc, strconv.Itoa(c.PID), "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return c.refuse(ReasonUnadjusted, "its mounts cannot be looked at, as process %d has ended or is of another pid namespace (the agent needs hostPID): %w", c.PID, err)
	}
	defer unix.Close(root)
	for _, destination := range ourFiles {
		k := slices.IndexFunc(c.Mounts, func(m Mount) bool { return m.Destination == destination })
		if k < 0 {
			return c.refuse(ReasonUnadjusted, "it was created without %s: kubelet will create it anew", destination)
		}
		ours, err := sameFile(root, destination, c.Mounts[k].Source)
		if errors.Is(err, unix.ENOSYS) {
			return nil // a kernel before 5.6
		}
		if !ours {
			return c.refuse(ReasonMount, "its %s is not the one that nri-vgpu mounted (%v): remove the volumeMount that a link in the image leads over it", destination, err)
		}
	}
	return nil
}

// sameFile tells whether a path in a container leads to a file of the host.
// Where not, the error says why.
func sameFile(root int, path, source string) (bool, error) {
	fd, err := unix.Openat2(root, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	var inside, outside unix.Stat_t
	if err := unix.Fstat(fd, &inside); err != nil {
		return false, err
	}
	if err := unix.Stat(source, &outside); err != nil {
		return false, fmt.Errorf("%s: %w", source, err)
	}
	if inside.Dev != outside.Dev || inside.Ino != outside.Ino {
		return false, errors.New("another file is there")
	}
	return true, nil
}
