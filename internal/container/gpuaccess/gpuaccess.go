// SPDX-License-Identifier: Apache-2.0

// Package gpuaccess detects the ways, other than ours, by which a container gets access to NVIDIA's
// GPUs. A container's image or pod may request GPUs from NVIDIA's runtime, and other plugins may
// add devices. The package makes no decision.
package gpuaccess

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/parser"
)

const (
	// VisibleDevices is the variable that selects the GPUs that the NVIDIA runtime mounts into a
	// container.
	VisibleDevices = "NVIDIA_VISIBLE_DEVICES"
	// NoDevices is the value of VisibleDevices that makes the runtime change nothing.
	NoDevices = "void"

	// OwnKind is the kind of our own CDI devices. The devices set variables. Each device except
	// NoDevices changes which GPUs the NVIDIA runtime mounts into a container.
	OwnKind = "nri-vgpu.io/env"

	// VolumeDevicesDir is the directory below which the NVIDIA runtime, if configured so, takes
	// mounts for requests of GPUs.
	VolumeDevicesDir = "/var/run/nvidia-container-devices"
)

// Container contains the parts of a container that may lead to GPUs.
type Container struct {
	// Env contains entries "NAME=value" in the order of the OCI spec.
	Env []string
	// Mounts are the destinations of the container's mounts.
	Mounts []string
	// PodAnnotations and Annotations belong to the pod and to the container.
	PodAnnotations, Annotations map[string]string
	CDIDevices                  []string
	// Devices are the paths of the container's device nodes.
	Devices []string
}

// Variable returns the value of a variable as a container sees it, and the number of its
// occurrences in the container's spec. The last occurrence counts.
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

// Hides reports whether a value of VisibleDevices selects no GPU.
func Hides(value string) bool { return value == "" || value == NoDevices || value == "none" }

// ByVariable returns the variable by which the NVIDIA runtime mounts GPUs into a container, "" if
// no variable mounts GPUs.
func ByVariable(env []string) string {
	value, count := Variable(env, VisibleDevices)
	if count > 0 && Hides(value) {
		return ""
	}
	if count > 0 {
		return VisibleDevices + "=" + value
	}
	// Early CUDA images do not set the variable, and get all GPUs.
	_, cuda := Variable(env, "CUDA_VERSION")
	_, require := Variable(env, "NVIDIA_REQUIRE_CUDA")
	if cuda > 0 && require == 0 {
		return "CUDA_VERSION without " + VisibleDevices
	}
	return ""
}

// mostValue is the number of bytes of a variable's value that Variables keeps. Any value longer
// than the values that Hides accepts selects GPUs.
const mostValue = 256

// Variables returns the variables of an environment that ByVariable reads.
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

// ByVolume reports whether a mount's destination requests a GPU from the NVIDIA runtime.
func ByVolume(destination string) bool {
	return Within(destination, VolumeDevicesDir) || Within(destination, strings.TrimPrefix(VolumeDevicesDir, "/var"))
}

// ByAnnotation returns the annotation that requests a GPU, and its device.
func ByAnnotation(annotations map[string]string, kind string) (key, device string, found bool) {
	for key, value := range annotations {
		if !cdiAnnotation(key) {
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

// cdiAnnotation reports whether the values of an annotation are CDI devices.
func cdiAnnotation(key string) bool {
	return strings.HasPrefix(key, "cdi.k8s.io/") || strings.Contains(key, ".cdi.k8s.io/")
}

// IsGPU reports whether a CDI device leads to a GPU. GPU devices are the devices of the configured
// kind, NVIDIA's other devices, and our devices that make the NVIDIA runtime mount GPUs. NVIDIA's
// runtime creates "runtime.nvidia.com/gpu=0" on demand. Only our plugin may request
// "nri-vgpu.io/env=GPU-…".
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

// privilegedNodes are device nodes that only a container with all device nodes of the node has.
var privilegedNodes = []string{"/dev/kmsg", "/dev/mem", "/dev/port"}

// privileged reports whether a container has all of the node's device nodes.
func privileged(devices []string) bool {
	return slices.ContainsFunc(devices, func(d string) bool { return slices.Contains(privilegedNodes, d) })
}

// Commands reports whether a container controls the container runtime: it is privileged, and has
// the directory of the runtime's NRI socket mounted writable. The container can obtain everything
// that the runtime has, so no device can be withheld from it. Our agent's container has these
// rights; no tenant's container has them.
func Commands(devices, writable []string, socket string) bool {
	return privileged(devices) && slices.ContainsFunc(writable, func(source string) bool { return IsDirectoryOf(source, socket) })
}

// IsDirectoryOf reports whether a path of the host is the directory of a socket.
func IsDirectoryOf(source, socket string) bool { return hostPath(source) == hostPath(path.Dir(socket)) }

// hostPath returns a path of the host with the link /var/run resolved, as runtimes do.
func hostPath(name string) string {
	name = path.Clean(name)
	if below, ok := strings.CutPrefix(name, "/var/run/"); ok {
		return "/run/" + below
	}
	return name
}

// ByDevice returns the device node of a GPU in the container's devices. A privileged container has
// every node, which is not a request for a GPU.
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

// Reference is a way by which a container gets GPUs.
type Reference struct {
	// By describes the way for a message.
	By string
	// GPU is the name of a GPU: a UUID, an index or "all".
	GPU string
	// Node reports whether GPU is the number of the GPU's device node.
	Node bool
}

// ByEnvironment returns the GPUs that a container gets by its environment.
func (c Container) ByEnvironment() []Reference {
	by := ByVariable(c.Env)
	value, count := Variable(c.Env, VisibleDevices)
	switch {
	case by == "" || value == VolumeDevicesDir: // then the mounts select the GPUs
		return nil
	case count == 0:
		return []Reference{{By: by, GPU: AllGPUs}}
	}
	var all []Reference
	for name := range strings.SplitSeq(value, ",") {
		if name = strings.TrimSpace(name); !Hides(name) {
			all = append(all, Reference{By: by, GPU: name})
		}
	}
	return all
}

// AllGPUs is the name of all GPUs of a node in NVIDIA's programs.
const AllGPUs = "all"

// ByOthers returns the GPUs that a container gets by mounts, annotations, CDI devices and device
// nodes. The parameter kind is the configured vendor and class of CDI devices.
func (c Container) ByOthers(kind string) []Reference {
	var all []Reference
	for _, m := range c.Mounts {
		if clean := path.Clean("/" + m); ByVolume(clean) {
			all = append(all, Reference{By: fmt.Sprintf("a volumeMount at %q", m), GPU: path.Base(clean)})
		}
	}
	for _, annotations := range []map[string]string{c.PodAnnotations, c.Annotations} {
		for key, value := range annotations {
			if !cdiAnnotation(key) {
				continue
			}
			for device := range strings.SplitSeq(value, ",") {
				all = append(all, byCDI("the annotation "+key, strings.TrimSpace(device), kind)...)
			}
		}
	}
	for _, device := range c.CDIDevices {
		all = append(all, byCDI("the CDI device "+device, device, kind)...)
	}
	if privileged(c.Devices) {
		return all
	}
	for _, node := range c.Devices {
		number, found := strings.CutPrefix(node, "/dev/nvidia")
		switch _, err := strconv.Atoi(number); {
		case found && err == nil:
			all = append(all, Reference{By: "the device node " + node, GPU: number, Node: true})
		case strings.HasPrefix(node, "/dev/dxg"):
			all = append(all, Reference{By: "the device node " + node, GPU: AllGPUs})
		}
	}
	return all
}

func byCDI(by, device, kind string) []Reference {
	if !IsGPU(device, kind) {
		return nil
	}
	_, _, name := parser.ParseDevice(device)
	return []Reference{{By: by, GPU: name}}
}

// Wish describes the first sign that a container requests GPUs, or returns "" without a sign. The
// parameter kind is the configured vendor and class of CDI devices.
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

// Within reports whether a destination is at or below dir.
func Within(destination, dir string) bool {
	clean := path.Clean("/" + destination)
	return clean == dir || strings.HasPrefix(clean, dir+"/")
}
