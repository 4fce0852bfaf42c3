// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"slices"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// foreign returns the resource of another device plugin that a container requests, "" if the
// container requests none. If the watch has not delivered the pod, foreign relies on the mark of the
// container.
func (h *Hook) foreign(c adjust.Container) string {
	pod, ok := h.opts.Pods.Cached(ref(c))
	switch {
	case ok:
		return request.Foreign(pod, c.Name, h.opts.Config.Node)
	case c.Foreign:
		return "a resource"
	}
	return ""
}

// ownGPUs returns the GPUs that containers of other device plugins must not see.
func (h *Hook) ownGPUs() []gpu.GPU {
	if h.opts.Foreign == nil {
		return h.opts.GPUs()
	}
	return slices.DeleteFunc(h.opts.GPUs(), func(g gpu.GPU) bool { return h.opts.Foreign(g.UUID) })
}
