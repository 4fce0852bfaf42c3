// SPDX-License-Identifier: Apache-2.0

package request

import (
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// hami is HAMi's dialect for NVIDIA GPUs, whose resources have the meaning of Volcano's. Unlike
// Volcano, HAMi requests a GPU exclusively if a request names no cores and no part of the memory.
type hami struct {
	config.HAMi
	perGPU int
}

func (hami) name() string { return DialectHAMi }

func (h hami) counting() counting {
	return counting{h.Number, h.Memory, h.MemoryPercentage, h.Cores, int64(h.MemoryFactor), false}
}

func (h hami) resources() []string { return append(h.counting().resources(), h.Priority) }

// shares returns no shares for a container that names only a priority.
func (h hami) shares(a amounts) ([]Share, error) {
	asked, err := h.counting().read(a, int64(h.DefaultNumber), 0)
	if err != nil {
		return nil, err
	}
	if a[h.Number] == 0 && asked.mib == 0 && asked.percent == 0 && asked.cores == 0 {
		return nil, nil
	}
	if _, named := a[h.Cores]; !named {
		asked.cores = h.coresOf(a)
	}
	memory := Memory{PPM: Whole}
	if h.DefaultMemoryMiB > 0 {
		memory = Memory{Bytes: h.DefaultMemoryMiB * MiB}
	}
	return asked.shares(asked.memoryOr(memory), asked.cores == 100), nil
}

// coresOf returns the percent of time of a request that names no cores, by the rules of HAMi's webhook.
// A request for all memory is for all of the time.
func (h hami) coresOf(a amounts) int64 {
	percent, byPercent := a[h.MemoryPercentage]
	_, byMiB := a[h.Memory]
	if byPercent && percent == 100 || !byPercent && !byMiB {
		return 100
	}
	return int64(h.DefaultCores)
}

// worth omits the priority, of which the patcher offers an amount that limits no pod.
func (h hami) worth(_ gpu.GPU, total uint64, left Left) map[string]int64 {
	return h.counting().worth(h.perGPU, true, total, left)
}
