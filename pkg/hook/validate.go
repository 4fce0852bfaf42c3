// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/nri-vgpu/nri-vgpu/internal/container/gpuaccess"
	"github.com/nri-vgpu/nri-vgpu/internal/container/ourfiles"
	"github.com/nri-vgpu/nri-vgpu/internal/nri"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// ValidateContainerAdjustment refuses a container if other plugins undid parts of the adjustment.
// The runtime calls plugins one after another, and later plugins can change an earlier plugin's
// adjustment. The runtime calls ValidateContainerAdjustment after all plugins.
func (e *edge) ValidateContainerAdjustment(ctx context.Context, req *api.ValidateContainerAdjustmentRequest) error {
	begin := time.Now()
	err, late := within(ctx, e.Hook, func(context.Context) error {
		c := describe(req.GetPod(), nri.Merge(req.GetContainer(), req.GetAdjust()))
		return e.checkAdjusted(c, owners{req.GetOwners(), req.GetContainer().GetId()})
	})
	c := describe(req.GetPod(), req.GetContainer())
	if late != nil {
		err = lateRefusal(c, late)
	}
	result := outcomeDone.or(err)
	e.opts.Metrics.observe("ValidateContainerAdjustment", result, begin)
	return e.report(c, result, err)
}

// owners records which plugin set each property of a container.
type owners struct {
	*api.OwningPlugins
	container string
}

// other returns the owning plugin and reports whether the owner is a plugin other than nri-vgpu. A
// runtime may report no owner. An owner that only removed the property has a leading dash.
func (h *Hook) other(plugin string, owned bool) (string, bool) {
	return strings.TrimPrefix(plugin, "-"), owned && plugin != h.opts.Config.NRI.PluginIndex+"-"+h.opts.Config.NRI.PluginName
}

func (h *Hook) checkAdjusted(c adjust.Container, by owners) error {
	given, holds := h.opts.Ledger.Get(c.PodUID, c.Name)
	if _, nothing := h.asksNothing(c, request.FromPod); !holds && h.exempt(c, nothing) {
		return nil
	}
	if resource := h.foreign(c); !holds && resource != "" {
		return h.opts.Rules.CheckForeign(c, resource, h.ownGPUs())
	}
	if by.OwningPlugins == nil {
		by.OwningPlugins = api.NewOwningPlugins()
	}
	if plugin, other := h.other(by.EnvOwner(by.container, adjust.VisibleDevices)); other {
		return c.Refuse(adjust.ReasonConflict, "the NRI plugin %s changes %s: remove that plugin from the node, or exempt the namespace in config.toml (node.exempt_namespaces)", plugin, adjust.VisibleDevices)
	}
	for _, device := range c.CDIDevices {
		plugin, owned := by.CdiDeviceOwner(by.container, device)
		if plugin, other := h.other(plugin, owned); other && gpuaccess.IsGPU(device, h.opts.Config.Injection.CDIKind) {
			return c.Refuse(adjust.ReasonConflict, "the NRI plugin %s adds the GPU %q to it: remove that plugin from the node, or exempt the namespace in config.toml (node.exempt_namespaces)", plugin, device)
		}
	}
	for _, node := range c.Devices {
		plugin, other := h.other(by.DeviceOwner(by.container, node))
		if other && gpuaccess.ByDevice([]string{node}) != "" {
			return c.Refuse(adjust.ReasonConflict, "the NRI plugin %s adds the device node %s to it: remove that plugin from the node, or exempt the namespace in config.toml (node.exempt_namespaces)", plugin, node)
		}
	}
	if holds {
		want, err := h.opts.Store.Dir(given.PodUID, given.Container)
		return h.checkCarries(c, by, want, err)
	}
	return h.checkWithheld(c)
}

// checkCarries refuses a container unless it has all of its nri-vgpu mounts, and
// no other mounts at the protected paths.
func (h *Hook) checkCarries(c adjust.Container, by owners, want string, err error) error {
	if dir, carries := ourfiles.Dir(c.Mounts); err != nil || !carries || dir != want {
		return c.Refuse(adjust.ReasonConflict, "another NRI plugin removed its limits: remove that plugin from the node")
	}
	if err := h.checkCapabilities(c, by); err != nil {
		return err
	}
	for _, m := range c.Mounts {
		k := slices.IndexFunc(adjust.ProtectedPaths, func(dir string) bool { return gpuaccess.Within(m.Destination, dir) })
		if k < 0 {
			continue
		}
		if plugin, other := h.other(by.MountOwner(by.container, m.Destination)); other {
			return c.Refuse(adjust.ReasonConflict, "the NRI plugin %s mounts over %s, which nri-vgpu needs to hold the container to its limits: remove that plugin from the node", plugin, adjust.ProtectedPaths[k])
		}
	}
	return nil
}

// checkCapabilities refuses a container with limits if another plugin adds driver capabilities that
// the configuration does not allow.
func (h *Hook) checkCapabilities(c adjust.Container, by owners) error {
	limited := slices.ContainsFunc(c.Mounts, func(m adjust.Mount) bool { return m.Destination == paths.ContainerLimits })
	value, _ := c.Variable(adjust.DriverCapabilities)
	plugin, other := h.other(by.EnvOwner(by.container, adjust.DriverCapabilities))
	if !limited || !other || !adjust.ExceedsCapabilities(value, h.opts.Config.Injection.DriverCapabilities) {
		return nil
	}
	return c.Refuse(adjust.ReasonConflict, "the NRI plugin %s sets %s to %q, which is more than injection.driver_capabilities in config.toml allows: remove that plugin from the node, or allow it",
		plugin, adjust.DriverCapabilities, value)
}

// checkWithheld refuses a container without an allocation that would see a GPU.
func (h *Hook) checkWithheld(c adjust.Container) error {
	if slices.Contains(c.CDIDevices, adjust.EnvDevice(adjust.NoDevices)) {
		return nil
	}
	if by := gpuaccess.ByVariable(c.Env); by != "" {
		return c.Refuse(adjust.ReasonConflict, "it requests no GPU, and another NRI plugin shows it GPUs by %s: remove that plugin from the node", by)
	}
	return nil
}
