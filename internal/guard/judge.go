// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/nri-vgpu/nri-vgpu/internal/container/gpuaccess"
	"github.com/nri-vgpu/nri-vgpu/internal/container/ourfiles"
	"github.com/nri-vgpu/nri-vgpu/internal/container/runtimes"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
)

// Container is the guard's view of a container.
type Container struct {
	// PodUID is the runtime's UID of the pod. The API server has another UID for a static pod.
	PodUID, Namespace, Pod, Name string
	Env                          []string
	Mounts                       []ourfiles.Mount
	// PodAnnotations and Annotations are the annotations of the pod and of the container. All
	// containers of a pod share one map of the pod's annotations, because a tenant may write tens
	// of thousands of annotations.
	PodAnnotations, Annotations map[string]string
	CDIDevices                  []string
	// Devices are the paths of the container's device nodes.
	Devices []string
	// Marked reports whether the agent has examined the container and allocated no GPU.
	Marked bool
	// PID is the container's first process after the container's creation; 0 if the runtime does
	// not report a process.
	PID int
}

// refuse returns an error that rejects a container, with advice.
func (r rules) refuse(c Container, format string, args ...any) error {
	why := runtimes.Brief(fmt.Errorf(format, args...))
	return fmt.Errorf("nri-vgpu's guard refuses container %q: %w: kubelet will retry; if the refusals continue, check whether nri-vgpu's agent runs on this node; if nri-vgpu was removed, remove %s", c.Name, why, r.program)
}

// Judge decides on a container after all other plugins have seen it. asks reports whether the
// container's pod is known to request GPUs. Judge allows the container, refuses it, or requires
// that the GPUs be hidden from it.
func (r rules) Judge(c Container, asks bool) (hide bool, err error) {
	switch {
	case r.left(c):
		return false, nil
	case slices.Contains(r.Retiring, c.PodUID):
		return false, fmt.Errorf("nri-vgpu's guard refuses container %q: nri-vgpu was removed from this node, and no program would enforce the container's limits: delete the container's pod", c.Name)
	case len(r.Retiring) > 0:
		return false, nil
	case asks:
		return false, r.refuse(c, "its pod requests a GPU, and the agent did not answer")
	}
	seen := gpuaccess.Container{Env: c.Env, PodAnnotations: c.PodAnnotations, Annotations: c.Annotations, CDIDevices: c.CDIDevices, Devices: c.Devices}
	for _, m := range c.Mounts {
		seen.Mounts = append(seen.Mounts, m.Destination)
	}
	if wish := seen.Wish(r.CDIKind); wish != "" {
		return false, r.refuse(c, "it would get GPUs by %s, and the agent did not answer", wish)
	}
	// Plugins cannot change a repeated variable, which already hides the GPUs.
	value, count := gpuaccess.Variable(c.Env, gpuaccess.VisibleDevices)
	return count == 0 || count == 1 && value == "", nil
}

// left reports whether the guard allows a container without a check. The guard allows containers
// that the agent has limited or has examined without an allocation, and the agent's container. If
// the agent does not mark the containers of exempt namespaces, left allows all containers of these
// namespaces.
func (r rules) left(c Container) bool {
	if !r.MarksExempt && slices.Contains(r.ExemptNamespaces, c.Namespace) {
		return true
	}
	return c.Marked || r.carries(c) || gpuaccess.Commands(c.Devices, ourfiles.Writable(c.Mounts), r.Socket)
}

// carries reports whether a container has mounts of the container's nri-vgpu files.
func (r rules) carries(c Container) bool {
	dir, carries := ourfiles.Dir(c.Mounts)
	return carries && c.PodUID != "" && c.Name != "" &&
		dir == filepath.Join(paths.Containers(r.RunDir), c.PodUID, c.Name)
}

// JudgeStart refuses to start a container in which its limits are hidden or could be removed. The
// agent also refuses such containers, but may have exited since the creation of the container.
func (r rules) JudgeStart(c Container, looks *ourfiles.Looks, proc string) error {
	if !r.carries(c) {
		return nil
	}
	if err := looks.Check(c.PodUID+"/"+c.Name, proc, c.PID, c.Mounts); err != nil {
		return r.refuse(c, "%w", err)
	}
	return nil
}
