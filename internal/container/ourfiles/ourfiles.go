// SPDX-License-Identifier: Apache-2.0

// Package ourfiles lists the files that nri-vgpu mounts into a container, and checks whether the
// container's processes find them.
package ourfiles

import (
	"errors"
	"path/filepath"
	"slices"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// Mount is a bind mount, with its paths on the host and in the container.
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

// Required are the paths of our files in a container with limits. A container with whole GPUs has
// no file of Required.
var Required = []string{
	paths.ContainerLimits,
	paths.ContainerUsage,
	paths.ContainerCUDA,
	paths.ContainerNVML,
	paths.ContainerVgpuctl,
	paths.ContainerPreload,
}

// optional are paths that a container from an earlier version may lack. No other path may be
// missing.
var optional = []string{paths.ContainerStandIns}

// These errors describe a container that has mounts of our files. Each error of Check wraps one of
// these errors.
var (
	// ErrIncomplete means that a file of ours was never mounted, or cannot be checked.
	ErrIncomplete = errors.New("not all of nri-vgpu's files are mounted")
	// ErrHidden means that the container's processes would find another file.
	ErrHidden = errors.New("another file is there")
	// ErrVolume means that a file of ours would be inside a volume.
	ErrVolume = errors.New("it would lie in a volume")
	// ErrStuck means that a file system did not answer.
	ErrStuck = errors.New("a file system of the container does not answer")
)

// Dir returns the host's directory of the files that a container carries.
func Dir(mounts []Mount) (dir string, carries bool) {
	for _, m := range mounts {
		if m.Destination == paths.ContainerLimits && filepath.Base(m.Source) == limits.LimitsFile || isAssignment(m) {
			return filepath.Dir(m.Source), true
		}
	}
	return "", false
}

// isAssignment reports whether a mount is the only file of ours in a container with whole GPUs.
func isAssignment(m Mount) bool {
	return m.Destination == paths.ContainerAssignment && filepath.Base(m.Source) == paths.Assignment
}

// Ours returns the mounts of a container that Check compares.
func Ours(mounts []Mount) []Mount {
	var ours []Mount
	for _, m := range mounts {
		if slices.Contains(Required, m.Destination) || slices.Contains(optional, m.Destination) {
			ours = append(ours, m)
		}
	}
	return ours
}

// Carried describes the files of ours in a running container.
type Carried struct {
	// PID is the pid of the container's first process.
	PID    int
	Mounts []Mount
}
