// SPDX-License-Identifier: Apache-2.0

// Package adjust decides which GPUs, mounts and environment variables the runtime changes in a new
// container. Rules.Grant adds a part of a GPU and its limits to a container that requests a part.
// Rules.Withhold hides all GPUs from any other container. Every function is pure.
package adjust

import (
	"strings"

	"github.com/nri-vgpu/nri-vgpu/internal/container/gpuaccess"
	"github.com/nri-vgpu/nri-vgpu/internal/container/ourfiles"
	"github.com/nri-vgpu/nri-vgpu/internal/container/runtimes"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// Container describes a container that the runtime creates.
type Container struct {
	// PodUID is the runtime's UID of the pod: it differs from the API server's for a
	// static pod.
	PodUID, Namespace, Pod, Name string
	// Env is "NAME=value" in the order of the OCI spec. A name may occur more than once:
	// the container sees the last value.
	Env []string
	// Mounts are the mounts of the image, the pod and the runtime.
	Mounts []Mount
	// PodAnnotations are the pod's annotations, Annotations the container's. All
	// containers of a pod share PodAnnotations: a tenant may write tens of thousands of
	// them.
	PodAnnotations, Annotations map[string]string
	// CDIDevices are the CDI devices that other drivers requested, such as a DRA driver.
	CDIDevices []string
	// Devices are the paths of the device nodes that other drivers added.
	Devices []string
	// Exempted reports whether the agent did not change the container at its creation.
	Exempted bool
	// Foreign reports whether the container requested a resource of another device plugin at its
	// creation.
	Foreign bool
	// Assignment is the container's AssignmentAnnotation, or "" before the container's creation.
	// Assignment never comes from the pod's annotations, which a user can write.
	Assignment string
	// PID is the id of the container's first process in the host's pid namespace. PID is 0 before
	// the container's creation, and if the runtime does not report the process.
	PID int
}

// Variable returns the value of a variable as the container will see it, and the number of times
// that the spec sets the variable.
func (c Container) Variable(name string) (value string, count int) {
	return gpuaccess.Variable(c.Env, name)
}

// Mount is a bind mount. Source is a path of the host, Destination a path of the
// container.
type Mount = ourfiles.Mount

// Variable is an environment variable.
type Variable struct{ Name, Value string }

// Adjustment lists the changes that the runtime must make to a container.
type Adjustment struct {
	// Env holds the variables that the spec sets at most once.
	Env []Variable
	// CDIDevices are fully qualified names, in the order of injection.
	CDIDevices []string
	Mounts     []Mount
	// DeviceNodes are paths of character devices.
	DeviceNodes []string
	Annotations map[string]string
	// Preload lists the user's libraries that the container's /etc/ld.so.preload must name after the
	// interposer.
	Preload []string
}

// Runtime describes the features of the container runtime.
type Runtime = runtimes.Runtime

// Assignment is the GPUs that the agent assigned to a container.
type Assignment struct {
	placement.Allocation
	// GPUs are the inventory entries of the allocation's devices, in the same order.
	GPUs []gpu.GPU
	// Dir is the host's directory of the container's files.
	Dir string
}

// whole reports whether the container owns all of each of its GPUs: all memory that the
// driver reports, exclusively, and all compute time. Memory that the node reserves counts
// as a limit. If the driver reports no memory of a GPU, the container may own only a part.
func (a Assignment) whole() bool {
	for i, d := range a.Devices {
		all := a.GPUs[i].MemoryBytes
		if d.MemoryInCommon || all == 0 || d.MemoryBytes < all || d.ComputePPM != 0 && d.ComputePPM < request.Whole {
			return false
		}
	}
	return len(a.Devices) > 0
}

// PreloadValue is the LD_PRELOAD value that names the interposer libraries.
var PreloadValue = strings.Join(paths.Preloaded, ":")

// AssignmentAnnotation records the assignment in the OCI spec, which the runtime keeps.
// The annotation never decides which resources a container may use. The agent reads the
// annotation only to recover the state of running containers whose files are lost.
const AssignmentAnnotation = "nri-vgpu.io/assignment"
