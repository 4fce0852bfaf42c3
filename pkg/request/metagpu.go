// SPDX-License-Identifier: Apache-2.0

package request

import (
	"fmt"
	"slices"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// metagpu is cnvrg's dialect. metagpu counts shares, and a GPU has a configured number of them. A
// request for more shares than a GPU has is for whole GPUs and a part of one more GPU. The
// configuration may offer different GPUs under different resource names.
type metagpu struct{ config.MetaGPU }

func (metagpu) name() string { return DialectMetaGPU }

func (m metagpu) resources() []string {
	names := make([]string, len(m.DeviceSharing))
	for i, s := range m.DeviceSharing {
		names[i] = s.ResourceName
	}
	return names
}

func (m metagpu) shares(a amounts) ([]Share, error) {
	var all []Share
	for _, sharing := range m.DeviceSharing {
		if _, asked := a[sharing.ResourceName]; !asked {
			continue
		}
		perGPU := int64(sharing.PerGPU())
		units, err := a.between(sharing.ResourceName, 0, 1, MaxGPUs*perGPU, "shares")
		if err != nil {
			return nil, err
		}
		for _, share := range parts(units, perGPU) {
			share.GPUs = only(sharing)
			if m.AllowSpread && !share.Exclusive {
				share.SplitPPM = uint32(Whole / perGPU)
			}
			all = append(all, share)
		}
	}
	if len(all) > MaxGPUs {
		return nil, fmt.Errorf("the shares need %d GPUs; allowed: at most %d", len(all), MaxGPUs)
	}
	return all, nil
}

// only returns the UUIDs of the GPUs that a resource name offers, or nil for any GPU.
func only(s config.DeviceSharing) []string {
	if slices.Contains(s.UUIDs, config.AllGPUs) {
		return nil
	}
	return s.UUIDs
}

func (m metagpu) worth(g gpu.GPU, total uint64, left Left) map[string]int64 {
	worth := make(map[string]int64)
	for _, s := range m.DeviceSharing {
		if allowed := only(s); allowed == nil || slices.Contains(allowed, g.UUID) {
			worth[s.ResourceName] = partsLeft(s.PerGPU(), total, left)
		}
	}
	return worth
}
