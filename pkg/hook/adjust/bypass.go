// SPDX-License-Identifier: Apache-2.0

package adjust

import (
	"github.com/nri-vgpu/nri-vgpu/internal/container/gpuaccess"
	"github.com/nri-vgpu/nri-vgpu/internal/container/ourfiles"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
)

// ProtectedPaths are the container paths reserved for nri-vgpu in a container with a part of a GPU.
// The pod must mount no volume at or below a protected path. Most images link /var/run to /run.
var ProtectedPaths = []string{
	paths.ContainerPreload,
	paths.ContainerRunDir,
	"/var" + paths.ContainerRunDir,
	paths.ContainerHomeDir,
}

// checkMounts refuses mounts that would hide nri-vgpu's mounts. The runtime
// compares destinations as strings, and sorts a protected path before an equal
// path with a trailing slash or a "..". Therefore checkMounts compares cleaned paths.
// For containers with limits, CheckAbove also refuses mounts above the
// protected paths.
func checkMounts(c Container) error {
	for _, m := range c.Mounts {
		for _, protected := range ProtectedPaths {
			if gpuaccess.Within(m.Destination, protected) {
				return c.Refuse(ReasonMount, "it mounts over %s (volumeMount %q), which nri-vgpu needs to hold the container to its limits: remove that volumeMount", protected, m.Destination)
			}
		}
	}
	return nil
}

// CheckAbove refuses user volumes above the protected paths: nri-vgpu's files would lie inside the
// volumes.
func CheckAbove(c Container) error {
	if err := ourfiles.CheckAbove(c.Mounts); err != nil {
		return c.Refuse(ReasonMount, "%w", err)
	}
	return nil
}

// checkBypass refuses every way to obtain a GPU other than resource limits.
func checkBypass(c Container, kind string) error {
	for _, m := range c.Mounts {
		if gpuaccess.ByVolume(m.Destination) {
			return c.Refuse(ReasonBypass, "it requests GPUs from the NVIDIA runtime by a volumeMount at %q: request GPUs by resource limits, such as nri-vgpu.io/vgpu-memory", m.Destination)
		}
	}
	for _, annotations := range []map[string]string{c.PodAnnotations, c.Annotations} {
		if key, device, found := gpuaccess.ByAnnotation(annotations, kind); found {
			return c.Refuse(ReasonBypass, "it requests GPU %q by the annotation %s: request GPUs by resource limits, such as nri-vgpu.io/vgpu-memory", device, key)
		}
	}
	for _, device := range c.CDIDevices {
		if gpuaccess.IsGPU(device, kind) {
			return c.Refuse(ReasonBypass, "another driver added the GPU %q to it: use either that driver or nri-vgpu on a node, or exempt the namespace in config.toml (node.exempt_namespaces)", device)
		}
	}
	if node := gpuaccess.ByDevice(c.Devices); node != "" {
		return c.Refuse(ReasonBypass, "another driver added the device node %s to it: use either that driver or nri-vgpu on a node, or exempt the namespace in config.toml (node.exempt_namespaces)", node)
	}
	return nil
}
