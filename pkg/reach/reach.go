// Package reach knows the ways by which a container comes to NVIDIA's GPUs
// beside ours: what its image and its pod may say to NVIDIA's runtime, and
// what others may have given it. It decides nothing.
package reach

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/parser"
)

const (
	// VisibleDevices is the variable that tells the NVIDIA runtime which GPUs
	// a container gets.
	VisibleDevices = "NVIDIA_VISIBLE_DEVICES"
	// NoDevices is the value by which it leaves a container alone.
	NoDevices = "void"

	// OwnKind is the kind of our own CDI devices. They set variables: each but
	// NoDevices changes what the NVIDIA runtime gives a container.
	OwnKind = "nri-vgpu.io/env"

	// VolumeDevicesDir is where the NVIDIA runtime, if configured so, takes
	// mounts for requests of GPUs.
	VolumeDevicesDir = "/var/run/nvidia-container-devices"
)

// Container is what of a container may lead to GPUs.
type Container struct {
	// Env is "NAME=value" in the order of the OCI spec.
	Env []string
	// Mounts are the destinations of its mounts.
	Mounts []string
	// PodAnnotations and Annotations are the pod's and the container's own.
	PodAnnotations, Annotations map[string]string
	CDIDevices                  []string
	// Devices are the paths of its device nodes.
	Devices []string
}

// Variable gives the value that a container sees of a variable, and how often
// the variable stands in its spec: the last one counts.
func Variable(env []string, name string) (value string, count int) {
	for _, entry := range env {
		key, v, _ := strings.Cut(entry, "=")
		if key == name {
			value = v
			count++
		}
	}
	return value, count
}

// Hides tells whether a value of VisibleDevices gives no GPU.
func Hides(value string) bool { return value == "" || value == NoDevices || value == "none" }

// ByVariable gives what of its environment makes the NVIDIA runtime give a
// container GPUs, "" where nothing does.
func ByVariable(env []string) string {
	value, count := Variable(env, VisibleDevices)
	if count > 0 && Hides(value) {
		return ""
	}
	if count > 0 {
		return VisibleDevices + "=" + value
	}
	// Images of CUDA's first years do not set the variable, and get all GPUs.
	_, cuda := Variable(env, "CUDA_VERSION")
	_, require := Variable(env, "NVIDIA_REQUIRE_CUDA")
	if cuda > 0 && require == 0 {
		return "CUDA_VERSION without " + VisibleDevices
	}
	return ""
}

// mostValue is how much of a variable's value Variables keeps, in bytes: longer values than
// those that Hides knows give GPUs.
const mostValue = 256

// Variables returns, of an environment, what ByVariable reads.
func Variables(env []string) []string {
	var read []string
	for _, entry := range env {
		name, _, _ := strings.Cut(entry, "=")
		if slices.Contains([]string{VisibleDevices, "CUDA_VERSION", "NVIDIA_REQUIRE_CUDA"}, name) {
			read = append(read, strings.Clone(strings.ToValidUTF8(entry[:min(len(entry), len(name)+1+mostValue)], "")))
		}
	}
	return read
}

// ByVolume tells whether a mount's destination asks the NVIDIA runtime for a
// GPU.
func ByVolume(destination string) bool {
	return Within(destination, VolumeDevicesDir) || Within(destination, strings.TrimPrefix(VolumeDevicesDir, "/var"))
}

// ByAnnotation gives the annotation, and its device, that asks for a GPU.
func ByAnnotation(annotations map[string]string, kind string) (key, device string, found bool) {
	for key, value := range annotations {
		if !strings.HasPrefix(key, "cdi.k8s.io/") && !strings.Contains(key, ".cdi.k8s.io/") {
			continue
		}
		for device := range strings.SplitSeq(value, ",") {
			if device = strings.TrimSpace(device); IsGPU(device, kind) {
				return key, device, true
			}
		}
	}
	return "", "", false
}

// IsGPU tells whether a CDI device is one of the configured kind, any other of
// NVIDIA's, or one of ours that makes the NVIDIA runtime give GPUs:
// "runtime.nvidia.com/gpu=0" is made by their runtime on the fly, and
// "nri-vgpu.io/env=GPU-…" is for nobody but us to ask for.
func IsGPU(device, kind string) bool {
	vendor, class, name := parser.ParseDevice(device)
	if vendor == "" {
		return false
	}
	if vendor+"/"+class == OwnKind {
		return name != NoDevices
	}
	return vendor+"/"+class == kind || vendor == "nvidia.com" || strings.HasSuffix(vendor, ".nvidia.com")
}

// privilegedNodes are device nodes that only a container with all of the
// node's has.
var privilegedNodes = []string{"/dev/kmsg", "/dev/mem", "/dev/port"}

// privileged reports whether a container has all of the node's device nodes.
func privileged(devices []string) bool {
	return slices.ContainsFunc(devices, func(d string) bool { return slices.Contains(privilegedNodes, d) })
}

// Commands reports whether a container commands the container runtime: it is privileged,
// and of the host's paths it can write to the directory of the runtime's NRI socket.
// It can give itself and others all that the runtime has, so there is nothing to keep
// from it. Our agent is such a container; no tenant's is.
func Commands(devices, writable []string, socket string) bool {
	return privileged(devices) && slices.ContainsFunc(writable, func(source string) bool { return IsDirectoryOf(source, socket) })
}

// IsDirectoryOf reports whether a path of the host is the directory of a socket.
func IsDirectoryOf(source, socket string) bool { return hostPath(source) == hostPath(path.Dir(socket)) }

// hostPath is a path of the host as runtimes name it: they follow the link /var/run.
func hostPath(name string) string {
	name = path.Clean(name)
	if below, ok := strings.CutPrefix(name, "/var/run/"); ok {
		return "/run/" + below
	}
	return name
}

// ByDevice gives the device node of a GPU that somebody gave the container. A
// privileged container has every node, and has not asked for one.
func ByDevice(devices []string) string {
	if privileged(devices) {
		return ""
	}
	for _, d := range devices {
		if strings.HasPrefix(d, "/dev/nvidia") || strings.HasPrefix(d, "/dev/dxg") {
			return d
		}
	}
	return ""
}

// Wish gives the first sign, in words, that a container is to have GPUs, ""
// where there is none. kind is the configured vendor and class of CDI devices.
func (c Container) Wish(kind string) string {
	if by := ByVariable(c.Env); by != "" {
		return by
	}
	if k := slices.IndexFunc(c.Mounts, ByVolume); k >= 0 {
		return fmt.Sprintf("a volumeMount at %q", c.Mounts[k])
	}
	for _, annotations := range []map[string]string{c.PodAnnotations, c.Annotations} {
		if key, device, found := ByAnnotation(annotations, kind); found {
			return fmt.Sprintf("the annotation %s for %q", key, device)
		}
	}
	if k := slices.IndexFunc(c.CDIDevices, func(d string) bool { return IsGPU(d, kind) }); k >= 0 {
		return fmt.Sprintf("the CDI device %q", c.CDIDevices[k])
	}
	if node := ByDevice(c.Devices); node != "" {
		return "the device node " + node
	}
	return ""
}

// Within tells whether a destination is at or below dir.
func Within(destination, dir string) bool {
	clean := path.Clean("/" + destination)
	return clean == dir || strings.HasPrefix(clean, dir+"/")
}
