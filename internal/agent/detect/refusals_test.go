// SPDX-License-Identifier: Apache-2.0

package detect

import (
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

func TestNewRefusalsOfMemoryAreReported(t *testing.T) {
	h := newHouse(t)
	made := time.Now().Add(-time.Hour)
	look := func(id string, refusals uint64) {
		c := container{Allocation: h.holders[containerID], made: made, before: limits.Usage{Devices: []limits.DeviceUsage{{Refusals: refusals}}}}
		h.detector.reportRefusals(&picture{containers: map[string]container{id: c}})
	}
	const line = `p VGPUMemoryLimitReached container "main" reached its memory limit of 1000 MiB on ` + gpuA
	look("one", 7)
	h.wantTold() // these refusals precede this agent
	look("one", 7)
	h.wantTold()
	look("one", 9)
	h.wantTold(line)
	look("one", 9)
	h.wantTold()
	look("older", 1)
	h.wantTold()
	made = time.Now()
	look("another", 1)
	h.wantTold(line)
	look("another", 0) // a new container
	h.wantTold()

	delete(h.pods, podUID)
	look("another", 5)
	h.wantTold()
}
