package hook

import (
	"strings"

	"github.com/nri-vgpu/nri-vgpu/pkg/reach"
)

const (
	visibleDevices = reach.VisibleDevices
	noDevices      = reach.NoDevices
	ldPreload      = "LD_PRELOAD"
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

// setPreload puts our libraries before the user's own. Where the variable
// stands twice, the user's libraries move to the container's ld.so.preload,
// and a CDI device sets the variable. Where the runtime has no CDI the
// variable stays the user's: /etc/ld.so.preload alone brings ours.
func (a *Adjustment) setPreload(c Container, rt Runtime) {
	current, count := c.variable(ldPreload)
	switch {
	case count <= 1 && current == "":
		a.Env = append(a.Env, Variable{ldPreload, preloadValue})
	case count <= 1:
		a.Env = append(a.Env, Variable{ldPreload, preloadValue + ":" + current})
	case rt.CDI:
		a.CDIDevices = append(a.CDIDevices, envDevice(preloadDevice))
		a.Preload = splitPreload(current)
	}
}

// splitPreload takes LD_PRELOAD apart as ld.so does.
func splitPreload(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return r == ':' || r == ' ' })
}
