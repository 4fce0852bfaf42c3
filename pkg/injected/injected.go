// Package injected knows what a container carries of ours, from its mounts,
// and whether its processes will find that.
package injected

import (
	"errors"
	"path/filepath"
	"slices"

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
	// ErrVolume: one of ours would lie in a volume.
	ErrVolume = errors.New("it would lie in a volume")
	// ErrStuck: a file system did not answer.
	ErrStuck = errors.New("a file system of the container does not answer")
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

// Ours returns those of a container's mounts that Check compares.
func Ours(mounts []Mount) []Mount {
	var ours []Mount
	for _, m := range mounts {
		if slices.Contains(Files, m.Destination) || slices.Contains(optional, m.Destination) {
			ours = append(ours, m)
		}
	}
	return ours
}

// Carried is what a container that runs has of ours.
type Carried struct {
	// PID is its first process.
	PID    int
	Mounts []Mount
}
