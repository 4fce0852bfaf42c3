// SPDX-License-Identifier: Apache-2.0

package request

import (
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// volcano is the dialect of the Volcano vGPU device plugin. A request names a number of GPUs, MiB
// or percent of each GPU's memory, and percent of each GPU's time. 100 percent of the time requests
// a GPU exclusively. As in the plugin, a zero beside other amounts is equivalent to omitting the
// resource, and memory in MiB overrides memory in percent.
type volcano struct {
	config.Volcano
	number int // per GPU
}

func (volcano) name() string { return DialectVolcano }

func (v volcano) resources() []string {
	return []string{v.Number, v.Memory, v.MemoryPercentage, v.Cores}
}

func (v volcano) shares(a amounts) ([]Share, error) {
	number, err := a.between(v.Number, 1, 1, MaxGPUs, "GPUs")
	if err != nil {
		return nil, err
	}
	memory, err := v.memory(a)
	if err != nil {
		return nil, err
	}
	cores, err := a.between(v.Cores, 0, 0, 100, "percent of each GPU")
	if err != nil {
		return nil, err
	}
	share := Share{
		Memory:     memory,
		ComputePPM: uint32(cores) * ppmPerPercent,
		Slots:      1,
		Exclusive:  cores == 100,
	}
	return same(share, number), nil
}

func (v volcano) memory(a amounts) (Memory, error) {
	mib, err := a.between(v.Memory, 0, 0, maxMiB, "MiB of each GPU")
	if err != nil {
		return Memory{}, err
	}
	percent, err := a.between(v.MemoryPercentage, 0, 0, 100, "percent of each GPU's memory")
	switch {
	case err != nil:
		return Memory{}, err
	case mib > 0:
		return Memory{Bytes: uint64(mib) * MiB}, nil
	case percent > 0:
		return Memory{PPM: uint32(percent) * ppmPerPercent}, nil
	default:
		return Memory{PPM: Whole}, nil
	}
}

// worth offers at most 99 percent of the time of a GPU that is in use: 100
// percent would request the GPU exclusively.
func (v volcano) worth(_ gpu.GPU, total uint64, left Left) map[string]int64 {
	slots, mib := left.counted(v.number)
	if slots == 0 {
		return nil
	}
	cores := left.percent()
	if left.Held {
		cores = min(cores, 99)
	}
	return map[string]int64{
		v.Number: slots,
		v.Memory: mib,
		v.MemoryPercentage: most(100, func(n int64) bool {
			return Memory{PPM: uint32(n) * ppmPerPercent}.On(total) <= left.Memory
		}),
		v.Cores: cores,
	}
}
