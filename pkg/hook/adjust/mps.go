// SPDX-License-Identifier: Apache-2.0

package adjust

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// These constants are the environment variables that a client of the Multi-Process Service reads.
const (
	MPSPipes      = "CUDA_MPS_PIPE_DIRECTORY"
	MPSPercentage = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	MPSMemory     = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
)

// ByMPS reports whether a container shares its GPUs through the Multi-Process
// Service. A container shares either all of its GPUs through the service, or none.
func (a Assignment) ByMPS() bool {
	return slices.ContainsFunc(a.Devices, func(d placement.Device) bool { return d.MPS })
}

// joinMPS makes the container's processes clients of the Multi-Process Service. joinMPS cannot
// change a variable that the spec sets twice: the interposer corrects the variable by the limits
// when CUDA starts.
func (a *Adjustment) joinMPS(c Container, r Rules, given Assignment) {
	if !given.ByMPS() {
		return
	}
	a.Mounts = append(a.Mounts,
		bind(r.MPSDir, paths.ContainerMPS, append(bindOptions(true), "nodev", "noexec")),
		bind(r.SHMDir, paths.ContainerSHM, append(bindOptions(false), "nodev", "noexec")))
	a.set(c, MPSPipes, paths.ContainerMPS)
	a.set(c, MPSMemory, memoryLimits(given.Devices))
	if ppm := leastPart(given.Devices); ppm < request.Whole {
		if own, _ := c.Variable(MPSPercentage); !narrower(own, ppm) {
			a.set(c, MPSPercentage, strconv.FormatFloat(float64(ppm)*100/request.Whole, 'f', -1, 64))
		}
	}
}

func (a *Adjustment) set(c Container, name, value string) {
	if _, count := c.Variable(name); count <= 1 {
		a.Env = append(a.Env, Variable{name, value})
	}
}

// narrower reports whether a percentage that the user chose is within the limit.
func narrower(percentage string, ppm uint32) bool {
	own, err := strconv.ParseFloat(percentage, 64)
	return err == nil && own > 0 && own*request.Whole/100 <= float64(ppm)
}

// leastPart returns the smallest compute limit of a container's GPUs: the service
// accepts a single limit for all GPUs of a process.
func leastPart(devices []placement.Device) uint32 {
	part := uint32(request.Whole)
	for _, d := range devices {
		if d.ComputePPM != 0 {
			part = min(part, d.ComputePPM)
		}
	}
	return part
}

// memoryLimits returns the memory limit of each process, such as "0=4096M,1=4096M",
// by the ordinal of each GPU in the process. The program chooses the order of its
// GPUs, so each entry has the largest limit. The interposer enforces the limit of
// each GPU.
func memoryLimits(devices []placement.Device) string {
	var most uint64
	for _, d := range devices {
		most = max(most, (d.Limit()+request.MiB-1)/request.MiB)
	}
	limits := make([]string, len(devices))
	for i := range devices {
		limits[i] = fmt.Sprintf("%d=%dM", i, most)
	}
	return strings.Join(limits, ",")
}
