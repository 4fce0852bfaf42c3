package request

import (
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// volcano is the dialect of the Volcano vGPU device plugin: a number of GPUs,
// and MiB (or percent of the memory) and percent of the time of each. 100
// percent of the time asks for a GPU that nobody else is on. As there, a zero
// beside other amounts says no more than leaving the resource out, and memory
// in MiB goes before memory in percent.
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

// worth: all of the time is not to be had of a GPU that somebody is on, as it
// asks for the GPU alone.
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
