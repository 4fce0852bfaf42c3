// SPDX-License-Identifier: Apache-2.0

package request

import (
	"fmt"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// native is nri-vgpu's own dialect: a number of GPUs, MiB or percent of each GPU's memory, and percent
// of each GPU's time. Without an amount of cores, a request has no limit on time. Without an amount of
// memory, a request is for all memory of each GPU, or for the percentage that it names in cores.
//
// If the configuration lets amounts be totals, memory and time are sums over all GPUs of a container,
// as ResourceQuota counts them. A request then names its memory, so that a quota counts it.
type native struct {
	config.Native
	slots int // per GPU
}

func (native) name() string { return DialectNative }

func (n native) counting() counting {
	return counting{n.Number, n.Memory, n.MemoryPercentage, n.Cores, 1, n.Amounts == config.AmountsTotal}
}

func (n native) resources() []string { return n.counting().resources() }

func (n native) shares(a amounts) ([]Share, error) {
	asked, err := n.counting().read(a, 1, 1)
	if err != nil {
		return nil, err
	}
	if asked.mib > 0 && asked.percent > 0 {
		return nil, fmt.Errorf("names both %s and %s; allowed: one of them", n.Memory, n.MemoryPercentage)
	}
	if n.Amounts == config.AmountsTotal && asked.mib == 0 && asked.percent == 0 {
		return nil, fmt.Errorf("names no memory; required: %s or %s, because dialects.native.amounts is %q", n.Memory, n.MemoryPercentage, n.Amounts)
	}
	otherwise := Memory{PPM: Whole}
	if asked.cores > 0 && n.MemoryOfCores == config.MemoryProportional {
		otherwise = Memory{PPM: asked.ppm(asked.cores)}
	}
	return asked.shares(asked.memoryOr(otherwise), false), nil
}

func (n native) worth(_ gpu.GPU, total uint64, left Left) map[string]int64 {
	return n.counting().worth(n.slots, false, total, left)
}
