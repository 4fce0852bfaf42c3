// SPDX-License-Identifier: Apache-2.0

package request

import (
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// aws is the dialect of the AWS virtual GPU device plugin. aws counts slots, and a GPU has a
// configured number of them. A slot is an equal part of the GPU's memory and time.
type aws struct{ config.AWS }

func (aws) name() string { return DialectAWS }

func (d aws) resources() []string { return []string{d.Slots} }

func (d aws) shares(a amounts) ([]Share, error) {
	perGPU := int64(d.SlotsPerGPU)
	slots, err := a.between(d.Slots, 0, 1, MaxGPUs*perGPU, "slots")
	if err != nil {
		return nil, err
	}
	return parts(slots, perGPU), nil
}

func (d aws) worth(_ gpu.GPU, total uint64, left Left) map[string]int64 {
	return map[string]int64{d.Slots: partsLeft(d.SlotsPerGPU, total, left)}
}
