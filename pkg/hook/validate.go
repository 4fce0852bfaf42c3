package hook

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/nri-vgpu/nri-vgpu/pkg/injected"
	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
	"github.com/nri-vgpu/nri-vgpu/pkg/reach"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
	"github.com/nri-vgpu/nri-vgpu/pkg/runtimes"
)

// ValidateContainerAdjustment refuses a container that other plugins have
// changed so that what we decided no longer holds. Plugins are asked in turn,
// and those behind us can undo what we did; the runtime asks this last.
func (e *edge) ValidateContainerAdjustment(ctx context.Context, req *api.ValidateContainerAdjustmentRequest) error {
	begin := time.Now()
	err, late := within(ctx, e.Hook, func(context.Context) error {
		c := describe(req.GetPod(), runtimes.Merge(req.GetContainer(), req.GetAdjust()))
		return e.checkAdjusted(c, owners{req.GetOwners(), req.GetContainer().GetId()})
	})
	c := describe(req.GetPod(), req.GetContainer())
	if late != nil {
		err = c.lateRefusal(late)
	}
	result := outcomeDone.or(err)
	e.Metrics.observe("ValidateContainerAdjustment", result, begin)
	return e.report(c, result, err)
}

// owners tell which plugin has set what in a container.
type owners struct {
	*api.OwningPlugins
	container string
}

// other returns the plugin, if it is another than ours, that an owner was found
// to be; a runtime may tell none at all. One that only took something away
// stands there with a dash.
func (h *Hook) other(plugin string, owned bool) (string, bool) {
	return strings.TrimPrefix(plugin, "-"), owned && plugin != h.Config.NRI.PluginIndex+"-"+h.Config.NRI.PluginName
}

func (h *Hook) checkAdjusted(c Container, by owners) error {
	given, holds := h.Ledger.Get(c.PodUID, c.Name)
	if _, nothing := h.asksNothing(c, request.FromPod); !holds && h.exempt(c, nothing) {
		return nil
	}
	if by.OwningPlugins == nil {
		by.OwningPlugins = api.NewOwningPlugins()
	}
	if plugin, other := h.other(by.EnvOwner(by.container, visibleDevices)); other {
		return c.refuse(ReasonConflict, "the NRI plugin %s changes %s: remove that plugin from the node, or exempt the namespace in config.toml (node.exempt_namespaces)", plugin, visibleDevices)
	}
	for _, device := range c.CDIDevices {
		plugin, owned := by.CdiDeviceOwner(by.container, device)
		if plugin, other := h.other(plugin, owned); other && reach.IsGPU(device, h.Config.Injection.CDIKind) {
			return c.refuse(ReasonConflict, "the NRI plugin %s gives it the GPU %q: remove that plugin from the node, or exempt the namespace in config.toml (node.exempt_namespaces)", plugin, device)
		}
	}
	for _, node := range c.Devices {
		plugin, other := h.other(by.DeviceOwner(by.container, node))
		if other && reach.ByDevice([]string{node}) != "" {
			return c.refuse(ReasonConflict, "the NRI plugin %s gives it the device node %s: remove that plugin from the node, or exempt the namespace in config.toml (node.exempt_namespaces)", plugin, node)
		}
	}
	if holds {
		want, err := h.Store.Dir(given.PodUID, given.Container)
		return h.checkCarries(c, by, want, err)
	}
	return h.checkWithheld(c)
}

// checkCarries wants a container to carry all that it was given, and no more
// at our paths.
func (h *Hook) checkCarries(c Container, by owners, want string, err error) error {
	if dir, carries := injected.Dir(c.Mounts); err != nil || !carries || dir != want {
		return c.refuse(ReasonConflict, "another NRI plugin took its limits away: remove that plugin from the node")
	}
	if err := h.checkCapabilities(c, by); err != nil {
		return err
	}
	for _, m := range c.Mounts {
		k := slices.IndexFunc(protectedPaths, func(dir string) bool { return reach.Within(m.Destination, dir) })
		if k < 0 {
			continue
		}
		if plugin, other := h.other(by.MountOwner(by.container, m.Destination)); other {
			return c.refuse(ReasonConflict, "the NRI plugin %s mounts over %s, which nri-vgpu needs to hold the container to its limits: remove that plugin from the node", plugin, protectedPaths[k])
		}
	}
	return nil
}

// checkCapabilities refuses a container with limits to which another plugin gives
// more of the driver than it may have.
func (h *Hook) checkCapabilities(c Container, by owners) error {
	limited := slices.ContainsFunc(c.Mounts, func(m Mount) bool { return m.Destination == layout.ContainerLimits })
	value, _ := c.variable(driverCapabilities)
	plugin, other := h.other(by.EnvOwner(by.container, driverCapabilities))
	if !limited || !other || !exceeds(value, h.Config.Injection.DriverCapabilities) {
		return nil
	}
	return c.refuse(ReasonConflict, "the NRI plugin %s sets %s to %q, which is more than injection.driver_capabilities in config.toml allows: remove that plugin from the node, or allow it",
		plugin, driverCapabilities, value)
}

// checkWithheld wants a container that was given nothing to get nothing.
func (h *Hook) checkWithheld(c Container) error {
	if slices.Contains(c.CDIDevices, envDevice(noDevices)) {
		return nil
	}
	if by := reach.ByVariable(c.Env); by != "" {
		return c.refuse(ReasonConflict, "it asks for no GPU and would see some by %s: another NRI plugin has changed that", by)
	}
	return nil
}
