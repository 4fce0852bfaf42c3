package hook

import (
	"github.com/nri-vgpu/nri-vgpu/pkg/injected"
	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
	"github.com/nri-vgpu/nri-vgpu/pkg/reach"
)

// protectedPaths are ours in a container with a part of a GPU: nothing of the
// user's may be mounted at or below them. /var/run is /run in most images.
var protectedPaths = []string{
	layout.ContainerPreload,
	layout.ContainerRunDir,
	"/var" + layout.ContainerRunDir,
	layout.ContainerHomeDir,
}

// checkMounts refuses mounts that would hide ours. The runtime compares
// destinations as they are written, and sorts ours before an equal one with a
// slash or a ".." in it: we compare what they mean. Of a container with limits
// checkAbove refuses those above ours, too.
func checkMounts(c Container) error {
	for _, m := range c.Mounts {
		for _, protected := range protectedPaths {
			if reach.Within(m.Destination, protected) {
				return c.refuse(ReasonMount, "it mounts over %s (volumeMount %q), which nri-vgpu needs to hold the container to its limits: remove that volumeMount", protected, m.Destination)
			}
		}
	}
	return nil
}

// checkAbove refuses volumes in which our files would lie.
func checkAbove(c Container) error {
	if err := injected.CheckAbove(c.Mounts); err != nil {
		return c.refuse(ReasonMount, "%w", err)
	}
	return nil
}

// checkBypass refuses the ways to GPUs that lead around us.
func checkBypass(c Container, kind string) error {
	for _, m := range c.Mounts {
		if reach.ByVolume(m.Destination) {
			return c.refuse(ReasonBypass, "it asks the NVIDIA runtime for GPUs by a volumeMount at %q: ask for them by resource limits, such as nri-vgpu.io/vgpu-memory", m.Destination)
		}
	}
	for _, annotations := range []map[string]string{c.PodAnnotations, c.Annotations} {
		if key, device, found := reach.ByAnnotation(annotations, kind); found {
			return c.refuse(ReasonBypass, "it asks for GPU %q by the annotation %s: ask by resource limits, such as nri-vgpu.io/vgpu-memory", device, key)
		}
	}
	for _, device := range c.CDIDevices {
		if reach.IsGPU(device, kind) {
			return c.refuse(ReasonBypass, "another driver gave it the GPU %q: use either that driver or nri-vgpu on a node, or exempt the namespace in config.toml (node.exempt_namespaces)", device)
		}
	}
	if node := reach.ByDevice(c.Devices); node != "" {
		return c.refuse(ReasonBypass, "another driver gave it the device node %s: use either that driver or nri-vgpu on a node, or exempt the namespace in config.toml (node.exempt_namespaces)", node)
	}
	return nil
}
