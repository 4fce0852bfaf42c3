// SPDX-License-Identifier: Apache-2.0

package adjust

import (
	"slices"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/internal/container/gpuaccess"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// These constants are the environment variables that Rules reads or sets. NoDevices is a value of
// VisibleDevices.
const (
	VisibleDevices = gpuaccess.VisibleDevices
	// DriverCapabilities selects the parts of the driver that NVIDIA's runtime mounts.
	DriverCapabilities = "NVIDIA_DRIVER_CAPABILITIES"
	NoDevices          = gpuaccess.NoDevices
	LDPreload          = "LD_PRELOAD"
)

// setVisible sets NVIDIA_VISIBLE_DEVICES to value in the container. An image and a pod may both set
// the variable. NRI cannot change a variable that occurs twice: the runtime overwrites the plugin's
// value with the second value (containerd#13432). If the variable occurs twice, a CDI device of
// nri-vgpu sets the variable, since the runtime applies CDI edits last. If the variable occurs
// once, setVisible needs no CDI: a container that requests no GPU must start even without
// nri-vgpu's CDI spec.
func (a *Adjustment) setVisible(c Container, rt Runtime, value string) error {
	current, count := c.Variable(VisibleDevices)
	switch {
	case count <= 1:
		a.Env = append(a.Env, Variable{VisibleDevices, value})
	case rt.CDI && !strings.Contains(value, ","):
		a.CDIDevices = append(a.CDIDevices, EnvDevice(value))
	case current == value:
		// The variable already has the right value.
	case rt.CDI:
		return c.Refuse(ReasonInjection, "image and pod both set %s, which cannot be changed to several GPUs: remove it from the pod's env", VisibleDevices)
	default:
		return c.Refuse(ReasonInjection, "image and pod both set %s, which %s %s lets no plugin change: remove it from the pod's env, or update to containerd 2.1 or CRI-O 1.34", VisibleDevices, rt.Name, rt.Version)
	}
	return nil
}

// setCapabilities restricts a container's driver capabilities to the allowed capabilities. nri-vgpu
// does not limit graphics and video APIs. Therefore a container with limits gets the libraries for
// graphics and video only if the configuration allows them. If the spec sets the variable twice, a
// CDI device replaces the value only if it exceeds the allowed capabilities.
func (a *Adjustment) setCapabilities(c Container, rt Runtime, allowed []string) error {
	value, count := c.Variable(DriverCapabilities)
	switch {
	case count <= 1:
		a.Env = append(a.Env, Variable{DriverCapabilities, strings.Join(granted(value, allowed), ",")})
	case !ExceedsCapabilities(value, allowed):
		// The value stays unchanged.
	case rt.CDI:
		a.CDIDevices = append(a.CDIDevices, EnvDevice(CapabilitiesDevice))
	default:
		return c.Refuse(ReasonInjection, "image and pod both set %s, and %q is more than injection.driver_capabilities allows: set it to %q in the pod's env, or update %s %s, which lets no plugin change it, to containerd 2.1 or CRI-O 1.34",
			DriverCapabilities, value, strings.Join(granted(value, allowed), ","), rt.Name, rt.Version)
	}
	return nil
}

// asked splits a value of DriverCapabilities as NVIDIA's runtime does.
func asked(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' })
}

// ExceedsCapabilities reports whether a value requests more than the allowed capabilities.
// If the value is empty, NVIDIA's runtime enables all capabilities for images of early CUDA
// versions.
func ExceedsCapabilities(value string, allowed []string) bool {
	list := asked(value)
	return len(list) == 0 || slices.ContainsFunc(list, func(capability string) bool { return !slices.Contains(allowed, capability) })
}

// granted returns the allowed capabilities that a value requests, in the order of the
// configuration. If the value requests no allowed capability, granted returns the allowed
// defaults of NVIDIA's runtime.
func granted(value string, allowed []string) []string {
	list := asked(value)
	if slices.Contains(list, "all") {
		return allowed
	}
	only := func(list []string) []string {
		return slices.DeleteFunc(slices.Clone(allowed), func(capability string) bool { return !slices.Contains(list, capability) })
	}
	if both := only(list); len(both) > 0 {
		return both
	}
	return only([]string{config.CapabilityCompute, config.CapabilityUtility})
}

// MostPreload bounds the length of a container's LD_PRELOAD, in bytes. The agent may have to write
// the libraries to a file on the node's /run.
const MostPreload = 16 << 10

// setPreload puts the interposer before the user's libraries in LD_PRELOAD. If the spec sets
// the variable twice, a CDI device sets the variable, and setPreload moves the user's
// libraries to the container's ld.so.preload. If the runtime has no CDI, the variable stays
// unchanged: /etc/ld.so.preload alone loads the interposer.
func (a *Adjustment) setPreload(c Container, rt Runtime) error {
	current, count := c.Variable(LDPreload)
	switch {
	case len(current) > MostPreload:
		return c.Refuse(ReasonInjection, "its LD_PRELOAD has %d bytes; allowed: %d", len(current), MostPreload)
	case count <= 1 && current == "":
		a.Env = append(a.Env, Variable{LDPreload, PreloadValue})
	case count <= 1:
		a.Env = append(a.Env, Variable{LDPreload, PreloadValue + ":" + current})
	case rt.CDI:
		a.CDIDevices = append(a.CDIDevices, EnvDevice(PreloadDevice))
		a.Preload = splitPreload(current)
	}
	return nil
}

// splitPreload splits LD_PRELOAD as ld.so does.
func splitPreload(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return r == ':' || r == ' ' })
}
