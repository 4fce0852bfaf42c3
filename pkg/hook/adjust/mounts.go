// SPDX-License-Identifier: Apache-2.0

package adjust

import (
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/internal/container/gpuaccess"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

func (a *Adjustment) mountOnce(m Mount) {
	if !slices.ContainsFunc(a.Mounts, func(o Mount) bool { return o.Destination == m.Destination }) {
		a.Mounts = append(a.Mounts, m)
	}
}

func bind(source, destination string, options []string) Mount {
	return Mount{Source: source, Destination: destination, Options: options}
}

func bindOptions(readOnly bool) []string {
	access := "rw"
	if readOnly {
		access = "ro"
	}
	return []string{"rbind", access, "rprivate", "nosuid"}
}

// mountOurs mounts the interposer and the container's limits, usage and preload files. Each
// container has a separate preload file. A container could take a lease on a common file, for which
// each program of other containers would then wait.
func (a *Adjustment) mountOurs(libraryDir, interposer, dir string) {
	ro, rw := bindOptions(true), bindOptions(false)
	for _, m := range []Mount{
		bind(filepath.Join(dir, limits.LimitsFile), paths.ContainerLimits, append(ro, "nodev", "noexec")),
		bind(filepath.Join(dir, limits.UsageFile), paths.ContainerUsage, append(rw, "nodev", "noexec")),
		bind(filepath.Join(interposer, paths.CUDALibrary), paths.ContainerCUDA, ro),
		bind(filepath.Join(interposer, paths.NVMLLibrary), paths.ContainerNVML, ro),
		bind(filepath.Join(libraryDir, paths.StandIns), paths.ContainerStandIns, ro),
		bind(filepath.Join(dir, paths.Preload), paths.ContainerPreload, append(ro, "nodev", "noexec")),
	} {
		m.Options = slices.Clone(m.Options)
		a.Mounts = append(a.Mounts, m)
	}
}

// mountAgent mounts the directory of the agent's socket. mountAgent does not mount the socket,
// since a restarted agent creates a new socket.
func (a *Adjustment) mountAgent(dir string) {
	a.Mounts = append(a.Mounts, Mount{
		Source: dir, Destination: paths.ContainerAgent, Options: append(bindOptions(true), "nodev", "noexec"),
	})
}

// mountTools mounts the programs that report the container's limits and usage. mountTools omits a
// mount in the search path if a user volume occupies the path.
func (a *Adjustment) mountTools(c Container, libraryDir, dialect string) {
	tools := []string{paths.ContainerVgpuctl, path.Join(paths.ContainerPath, paths.Vgpuctl)}
	if dialect == request.DialectMetaGPU {
		tools = append(tools, paths.ContainerMgctl, path.Join(paths.ContainerPath, paths.Mgctl))
	}
	for _, tool := range tools {
		if path.Dir(tool) != paths.ContainerPath || !occupied(c.Mounts, tool) {
			a.Mounts = append(a.Mounts, bind(filepath.Join(libraryDir, paths.Vgpuctl), tool, bindOptions(true)))
		}
	}
}

// occupied reports whether the pod mounts a volume at a path, above the path or below the path. In
// most images /bin links to /usr/bin.
func occupied(mounts []Mount, tool string) bool {
	return slices.ContainsFunc(mounts, func(m Mount) bool {
		at := path.Clean("/" + m.Destination)
		return at != "/" && (gpuaccess.Within(tool, at) || gpuaccess.Within(at, tool) || gpuaccess.Within(strings.TrimPrefix(tool, "/usr"), at))
	})
}

// mountAssignment marks a container without the interposer as adjusted. A user can
// forge an annotation, but not a mount from the agent's directory.
func (a *Adjustment) mountAssignment(dir string) {
	a.Mounts = append(a.Mounts,
		bind(filepath.Join(dir, paths.Assignment), paths.ContainerAssignment, append(bindOptions(true), "nodev", "noexec")))
}
