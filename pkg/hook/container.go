// Package hook stands between the container runtime and the containers it
// creates: those that ask for a part of a GPU get it, with its limits, and
// all others get none. What a container gets is decided by pure functions
// (Withhold, Grant); a thin edge speaks NRI.
package hook

import (
	"strings"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/injected"
	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/reach"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
	"github.com/nri-vgpu/nri-vgpu/pkg/runtimes"
)

// Container is what the runtime tells of a container that it creates.
type Container struct {
	// PodUID is the runtime's: a static pod's is not the API server's.
	PodUID, Namespace, Pod, Name string
	// Env is "NAME=value" in the order of the OCI spec. A name may stand more
	// than once: the last one is what the container sees.
	Env []string
	// Mounts are those of image, pod and runtime.
	Mounts []Mount
	// PodAnnotations and Annotations are the pod's and the container's own. All containers
	// of a pod share the pod's: a tenant may write tens of thousands.
	PodAnnotations, Annotations map[string]string
	// CDIDevices were asked for by others, such as a DRA driver.
	CDIDevices []string
	// Devices are the paths of the device nodes that others gave it.
	Devices []string
	// Exempted: the agent that looked at its creation left it alone.
	Exempted bool
	// Assignment is the container's own AssignmentAnnotation, "" before it was
	// created. What its pod says under that name, the user has written.
	Assignment string
	// PID is its first process in the host's pid namespace, once it has been
	// created; 0 where the runtime does not tell.
	PID int
}

// variable returns the value of a variable that the container will see, and how
// often the variable stands in the spec.
func (c Container) variable(name string) (value string, count int) {
	return reach.Variable(c.Env, name)
}

// Mount is a bind mount; paths are the host's and the container's.
type Mount = injected.Mount

// Variable is an environment variable.
type Variable struct{ Name, Value string }

// Adjustment is what the runtime is to change in a container.
type Adjustment struct {
	// Env is set where the variable stands once or not at all.
	Env []Variable
	// CDIDevices are fully qualified, in the order of injection.
	CDIDevices []string
	Mounts     []Mount
	// DeviceNodes are paths of character devices.
	DeviceNodes []string
	Annotations map[string]string
	// Preload, where not empty, are the user's libraries that the container's
	// own /etc/ld.so.preload must name behind ours.
	Preload []string
}

// Runtime is what the container runtime can do.
type Runtime = runtimes.Runtime

// Assignment is what a container is given.
type Assignment struct {
	placement.Allocation
	// GPUs are the inventory's entries of the allocation's devices, in the
	// same order.
	GPUs []gpu.GPU
	// Dir is the host's directory of the container's files.
	Dir string
}

// whole reports whether nothing limits the container on any of its GPUs, nor
// anybody else is there: it was given all memory that the driver has, as its
// own, and all time. Memory that the node keeps back is a limit.
func (a Assignment) whole() bool {
	for i, d := range a.Devices {
		if d.MemoryInCommon || d.MemoryBytes < a.GPUs[i].MemoryBytes || d.ComputePPM != 0 && d.ComputePPM < request.Whole {
			return false
		}
	}
	return len(a.Devices) > 0
}

// preloadValue names our libraries as LD_PRELOAD does.
var preloadValue = strings.Join(layout.Preloaded, ":")

// AssignmentAnnotation holds, in the OCI spec that the runtime keeps, what was
// injected. It is never read for what a container may have, only to recover
// the state of running containers whose files are lost.
const AssignmentAnnotation = "nri-vgpu.io/assignment"
