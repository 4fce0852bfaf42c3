package hook

import (
	"path"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
	"tags.cncf.io/container-device-interface/pkg/parser"
)

// protectedPaths are ours in a container with a part of a GPU: nothing of the
// user's may be mounted at or below them. Mounts above them are harmless, as
// runtimes mount what lies deeper later. /var/run is /run in most images.
var protectedPaths = []string{
	layout.ContainerPreload,
	layout.ContainerRunDir,
	"/var" + layout.ContainerRunDir,
	layout.ContainerHomeDir,
}

// volumeDevicesDir is where the NVIDIA container runtime, if configured so,
// takes mounts for requests of GPUs.
const volumeDevicesDir = "/var/run/nvidia-container-devices"

// checkMounts refuses mounts that would hide ours. The runtime compares
// destinations as they are written, and sorts ours before an equal one with a
// slash or a ".." in it: we compare what they mean.
func checkMounts(c Container) error {
	for _, m := range c.Mounts {
		for _, protected := range protectedPaths {
			if within(m.Destination, protected) {
				return c.refuse(ReasonMount, "it mounts over %s (volumeMount %q), which nri-vgpu needs to hold the container to its limits: remove that volumeMount", protected, m.Destination)
			}
		}
	}
	return nil
}

// checkBypass refuses the ways to GPUs that lead around us.
func checkBypass(c Container, kind string) error {
	for _, m := range c.Mounts {
		if within(m.Destination, volumeDevicesDir) || within(m.Destination, strings.TrimPrefix(volumeDevicesDir, "/var")) {
			return c.refuse(ReasonBypass, "it asks the NVIDIA runtime for GPUs by a volumeMount at %q: ask for them by resource limits, such as nri-vgpu.io/vgpu-memory", m.Destination)
		}
	}
	for key, value := range c.Annotations {
		if !strings.HasPrefix(key, "cdi.k8s.io/") && !strings.Contains(key, ".cdi.k8s.io/") {
			continue
		}
		for device := range strings.SplitSeq(value, ",") {
			if isGPUDevice(strings.TrimSpace(device), kind) {
				return c.refuse(ReasonBypass, "it asks for GPU %q by the annotation %s: ask by resource limits, such as nri-vgpu.io/vgpu-memory", device, key)
			}
		}
	}
	for _, device := range c.CDIDevices {
		if isGPUDevice(device, kind) {
			return c.refuse(ReasonBypass, "another driver gave it the GPU %q: use either that driver or nri-vgpu on a node, or exempt the namespace in config.toml (node.exempt_namespaces)", device)
		}
	}
	return nil
}

// isGPUDevice tells whether a CDI device is one of the configured kind, or any
// other of NVIDIA's: "runtime.nvidia.com/gpu=0" is made by their runtime on
// the fly.
func isGPUDevice(device, kind string) bool {
	vendor, class, _ := parser.ParseDevice(device)
	if vendor == "" {
		return false
	}
	return vendor+"/"+class == kind || vendor == "nvidia.com" || strings.HasSuffix(vendor, ".nvidia.com")
}

// within tells whether a destination is at or below dir.
func within(destination, dir string) bool {
	clean := path.Clean("/" + destination)
	return clean == dir || strings.HasPrefix(clean, dir+"/")
}
