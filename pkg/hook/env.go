package hook

import (
	"slices"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/reach"
)

const (
	visibleDevices = reach.VisibleDevices
	// driverCapabilities tells NVIDIA's runtime what of the driver a container gets.
	driverCapabilities = "NVIDIA_DRIVER_CAPABILITIES"
	noDevices          = reach.NoDevices
	ldPreload          = "LD_PRELOAD"
)

// setVisible makes the container see NVIDIA_VISIBLE_DEVICES=value. A variable
// that stands twice, as an image and a pod may both set it, cannot be changed
// through NRI: the runtime overwrites our value with the second one
// (containerd#13432). Then one of our own CDI devices sets it, as what CDI
// sets comes last. CDI is not used where it need not be: a container that asks
// for nothing should start though somebody has removed our spec.
func (a *Adjustment) setVisible(c Container, rt Runtime, value string) error {
	current, count := c.variable(visibleDevices)
	switch {
	case count <= 1:
		a.Env = append(a.Env, Variable{visibleDevices, value})
	case rt.CDI && !strings.Contains(value, ","):
		a.CDIDevices = append(a.CDIDevices, envDevice(value))
	case current == value:
		// It has the right value already.
	case rt.CDI:
		return c.refuse(ReasonInjection, "image and pod both set %s, which cannot be changed to several GPUs: remove it from the pod's env", visibleDevices)
	default:
		return c.refuse(ReasonInjection, "image and pod both set %s, which %s %s lets no plugin change: remove it from the pod's env, or update to containerd 2.1 or CRI-O 1.34", visibleDevices, rt.Name, rt.Version)
	}
	return nil
}

// setCapabilities leaves a container, of what it asks of the driver, that which
// it may have. Graphics and video APIs know no limits, so a container with limits
// gets their libraries only where the configuration allows them. Where the
// variable stands twice, only one that exceeds what is allowed is changed, by a
// CDI device.
func (a *Adjustment) setCapabilities(c Container, rt Runtime, allowed []string) error {
	value, count := c.variable(driverCapabilities)
	switch {
	case count <= 1:
		a.Env = append(a.Env, Variable{driverCapabilities, strings.Join(granted(value, allowed), ",")})
	case !exceeds(value, allowed):
		// It keeps what it asks for.
	case rt.CDI:
		a.CDIDevices = append(a.CDIDevices, envDevice(capabilitiesDevice))
	default:
		return c.refuse(ReasonInjection, "image and pod both set %s, and %q is more than injection.driver_capabilities allows: set it to %q in the pod's env, or update %s %s, which lets no plugin change it, to containerd 2.1 or CRI-O 1.34",
			driverCapabilities, value, strings.Join(granted(value, allowed), ","), rt.Name, rt.Version)
	}
	return nil
}

// asked splits a value of driverCapabilities as NVIDIA's runtime does.
func asked(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' })
}

// exceeds reports whether a value asks for more than is allowed. Without a value
// NVIDIA's runtime gives images of CUDA's first years everything.
func exceeds(value string, allowed []string) bool {
	list := asked(value)
	return len(list) == 0 || slices.ContainsFunc(list, func(capability string) bool { return !slices.Contains(allowed, capability) })
}

// granted returns those of the allowed capabilities that a value asks for, in the
// order of the configuration. A container that asks for none of them gets what
// NVIDIA's runtime gives by default.
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

// mostPreload bounds the libraries that a container preloads, in bytes: its file on the
// node's /run may have to name them.
const mostPreload = 16 << 10

// setPreload puts our libraries before the user's own. Where the variable
// stands twice, the user's libraries move to the container's ld.so.preload,
// and a CDI device sets the variable. Where the runtime has no CDI the
// variable stays the user's: /etc/ld.so.preload alone brings ours.
func (a *Adjustment) setPreload(c Container, rt Runtime) error {
	current, count := c.variable(ldPreload)
	switch {
	case len(current) > mostPreload:
		return c.refuse(ReasonInjection, "its LD_PRELOAD has %d bytes; allowed: %d", len(current), mostPreload)
	case count <= 1 && current == "":
		a.Env = append(a.Env, Variable{ldPreload, preloadValue})
	case count <= 1:
		a.Env = append(a.Env, Variable{ldPreload, preloadValue + ":" + current})
	case rt.CDI:
		a.CDIDevices = append(a.CDIDevices, envDevice(preloadDevice))
		a.Preload = splitPreload(current)
	}
	return nil
}

// splitPreload takes LD_PRELOAD apart as ld.so does.
func splitPreload(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return r == ':' || r == ' ' })
}
