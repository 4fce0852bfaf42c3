// SPDX-License-Identifier: Apache-2.0

package hook

import "github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"

// MPS is the driver's Multi-Process Service on this node.
type MPS interface {
	// Ready returns an error with the cause if the service does not serve the GPUs with these
	// UUIDs.
	Ready(uuids []string) error
}

// checkMPS refuses a container whose GPUs the Multi-Process Service does not
// serve.
func (h *Hook) checkMPS(c adjust.Container, given adjust.Assignment) error {
	if !given.ByMPS() {
		return nil
	}
	if h.opts.MPS == nil {
		return c.Refuse(adjust.ReasonMPS, "its GPU was shared by MPS, which sharing.method in config.toml no longer sets: recreate the pod")
	}
	var uuids []string
	for _, d := range given.Devices {
		uuids = append(uuids, d.UUID)
	}
	if err := h.opts.MPS.Ready(uuids); err != nil {
		return c.Refuse(adjust.ReasonMPS, "its GPU is shared by MPS, and %w", err)
	}
	return nil
}
