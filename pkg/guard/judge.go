package guard

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/nri-vgpu/nri-vgpu/pkg/injected"
	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
	"github.com/nri-vgpu/nri-vgpu/pkg/reach"
	"github.com/nri-vgpu/nri-vgpu/pkg/runtimes"
)

// Container is what the guard is told of one.
type Container struct {
	// PodUID is the runtime's: a static pod's is not the API server's.
	PodUID, Namespace, Pod, Name string
	Env                          []string
	Mounts                       []injected.Mount
	// PodAnnotations and Annotations are the pod's and the container's own. All containers
	// of a pod share the pod's: a tenant may write tens of thousands.
	PodAnnotations, Annotations map[string]string
	CDIDevices                  []string
	// Devices are the paths of its device nodes.
	Devices []string
	// Marked tells whether the agent has looked at it and given it no GPU.
	Marked bool
	// PID is its first process, once it has been created; 0 where the runtime
	// does not tell.
	PID int
}

// refuse says that a container must not run as it is, and what to do.
func (s Settings) refuse(c Container, format string, args ...any) error {
	why := runtimes.Brief(fmt.Errorf(format, args...))
	return fmt.Errorf("nri-vgpu's guard refuses container %q: %w: kubelet will try again; if it goes on, see whether nri-vgpu's agent runs on this node, and if nri-vgpu was removed, remove %s", c.Name, why, s.program)
}

// Judge decides on a container after all other plugins have seen it. asks
// tells whether its pod is known to ask for GPUs. It may pass as it is, or be
// refused, or has to be hidden the GPUs from.
func (s Settings) Judge(c Container, asks bool) (hide bool, err error) {
	switch {
	case s.left(c):
		return false, nil
	case len(s.Retiring) > 0 && slices.Contains(s.Retiring, c.PodUID):
		return false, fmt.Errorf("nri-vgpu's guard refuses container %q: nri-vgpu was removed from this node, and nobody would hold the container to its limits: delete its pod", c.Name)
	case len(s.Retiring) > 0:
		return false, nil
	case asks:
		return false, s.refuse(c, "its pod asks for a GPU, and the agent did not answer for it")
	}
	seen := reach.Container{Env: c.Env, PodAnnotations: c.PodAnnotations, Annotations: c.Annotations, CDIDevices: c.CDIDevices, Devices: c.Devices}
	for _, m := range c.Mounts {
		seen.Mounts = append(seen.Mounts, m.Destination)
	}
	if wish := seen.Wish(s.CDIKind); wish != "" {
		return false, s.refuse(c, "it would get GPUs by %s, and the agent did not answer for it", wish)
	}
	// A variable that stands twice cannot be changed, and hides already.
	value, count := reach.Variable(c.Env, reach.VisibleDevices)
	return count == 0 || count == 1 && value == "", nil
}

// left reports whether a container is none of the guard's: the agent gave it its
// limits, or looked at it and gave it nothing, or it is the agent itself.
func (s Settings) left(c Container) bool {
	if !s.MarksExempt && slices.Contains(s.ExemptNamespaces, c.Namespace) {
		return true
	}
	return c.Marked || s.carries(c) || reach.Commands(c.Devices, injected.Writable(c.Mounts), s.Socket)
}

// carries tells whether a container has its own files of ours.
func (s Settings) carries(c Container) bool {
	dir, carries := injected.Dir(c.Mounts)
	return carries && c.PodUID != "" && c.Name != "" &&
		dir == filepath.Join(layout.Containers(s.RunDir), c.PodUID, c.Name)
}

// JudgeStart refuses to start a container in which its limits are hidden, or could be
// taken away. The
// agent does the same; it may have gone since the container was created.
func (s Settings) JudgeStart(c Container, looks *injected.Looks, proc string) error {
	if !s.carries(c) {
		return nil
	}
	if err := looks.Check(c.PodUID+"/"+c.Name, proc, c.PID, c.Mounts); err != nil {
		return s.refuse(c, "%w", err)
	}
	return nil
}
