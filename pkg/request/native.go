// SPDX-License-Identifier: Apache-2.0

package request

import (
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// native is nri-vgpu's own dialect: a number of GPUs, MiB of each GPU and percent of each GPU's
// time. Without an amount of memory, a request is for all memory of each GPU. Without an amount of
// cores, a request has no limit on time.
type native struct {
	config.Native
	slots int // per GPU
}

func (native) name() string { return DialectNative }

func (n native) resources() []string { return []string{n.Number, n.Memory, n.Cores} }

func (n native) shares(a amounts) ([]Share, error) {
	number, err := a.between(n.Number, 1, 1, MaxGPUs, "GPUs")
	if err != nil {
		return nil, err
	}
	mib, err := a.between(n.Memory, 0, 1, maxMiB, "MiB of each GPU")
	if err != nil {
		return nil, err
	}
	cores, err := a.between(n.Cores, 0, 1, 100, "percent of each GPU")
	if err != nil {
		return nil, err
	}
	share := Share{Memory: Memory{PPM: Whole}, ComputePPM: uint32(cores) * ppmPerPercent, Slots: 1}
	if mib > 0 {
		share.Memory = Memory{Bytes: uint64(mib) * MiB}
	}
	return same(share, number), nil
}

func (n native) worth(_ gpu.GPU, _ uint64, left Left) map[string]int64 {
	slots, mib := left.counted(n.slots)
	if slots == 0 {
		return nil
	}
	return map[string]int64{n.Number: slots, n.Memory: mib, n.Cores: left.percent()}
}
