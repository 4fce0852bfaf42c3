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
	perGPU int
}

func (volcano) name() string { return DialectVolcano }

func (v volcano) counting() counting {
	return counting{v.Number, v.Memory, v.MemoryPercentage, v.Cores, 1, false}
}

func (v volcano) resources() []string { return v.counting().resources() }

func (v volcano) shares(a amounts) ([]Share, error) {
	asked, err := v.counting().read(a, 1, 0)
	if err != nil {
		return nil, err
	}
	return asked.shares(asked.memoryOr(Memory{PPM: Whole}), asked.cores == 100), nil
}

func (v volcano) worth(_ gpu.GPU, total uint64, left Left) map[string]int64 {
	return v.counting().worth(v.perGPU, true, total, left)
}
