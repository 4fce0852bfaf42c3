// SPDX-License-Identifier: Apache-2.0

package request

import (
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// alnair is Alnair's dialect: GiB and percent of one GPU. A request for memory
// alone has no limit on time. A request for compute alone holds its memory in
// common.
type alnair struct{ config.Alnair }

func (alnair) name() string { return DialectAlnair }

func (d alnair) resources() []string { return []string{d.Memory, d.Compute} }

func (d alnair) shares(a amounts) ([]Share, error) {
	gib, err := a.between(d.Memory, 0, 1, maxMiB/1024, "GiB of one GPU")
	if err != nil {
		return nil, err
	}
	compute, err := a.between(d.Compute, 0, 1, 100, "percent of one GPU")
	if err != nil {
		return nil, err
	}
	memory := Memory{Common: true}
	if gib > 0 {
		memory = Memory{GiB: uint32(gib)}
	}
	return []Share{{Memory: memory, ComputePPM: uint32(compute) * ppmPerPercent}}, nil
}

// worth also offers compute on a GPU whose memory containers hold in common.
func (d alnair) worth(_ gpu.GPU, total uint64, left Left) map[string]int64 {
	gib := most(int64(RoundGiB(total)), func(n int64) bool { return gibOn(uint64(n), total) <= left.Memory })
	worth := map[string]int64{d.Memory: gib}
	if gib > 0 || left.Common {
		worth[d.Compute] = left.percent()
	}
	return worth
}
