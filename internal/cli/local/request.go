// SPDX-License-Identifier: Apache-2.0

// Package local runs programs under limits without Kubernetes. The package also reports the limits
// and usage of containers and of the programs that it runs, from their pages.
package local

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// Request describes the limits that a run requests on each of its GPUs.
type Request struct {
	// MemoryBytes is the limit on memory, 0 for all of the GPU's memory.
	MemoryBytes uint64
	// ComputePPM is the limit on GPU time, in parts per million, 0 for no limit.
	ComputePPM uint32
	// MaximumPPM, if greater than ComputePPM, makes ComputePPM a guarantee. The run lends idle
	// time, and borrows up to MaximumPPM.
	MaximumPPM uint32
	// GPUs are indices or UUIDs. If empty, the run gets the first GPU.
	GPUs []string
}

// ParseRequest parses the request from the command line. memory is a Kubernetes quantity such
// as "2Gi", and cores a percentage. "" and 0 stand for no limit.
func ParseRequest(memory string, cores int, gpus []string) (Request, error) {
	r := Request{GPUs: gpus}
	var errs []error
	if memory != "" {
		bytes, err := parseMemory(memory)
		errs = append(errs, err)
		r.MemoryBytes = bytes
	}
	if cores < 0 || cores > 100 {
		errs = append(errs, fmt.Errorf("--cores is %d; allowed: 1 to 100 (percent of the GPU's time)", cores))
	} else {
		r.ComputePPM = uint32(cores) * (limits.NoComputeLimit / 100)
	}
	return r, errors.Join(errs...)
}

func parseMemory(memory string) (uint64, error) {
	q, err := resource.ParseQuantity(memory)
	bytes, whole := q.AsInt64()
	if err != nil || !whole || bytes < 1<<20 {
		return 0, fmt.Errorf("--memory is %q; allowed: an amount of bytes, at least 1Mi, such as 2Gi or 512Mi", memory)
	}
	return uint64(bytes), nil
}

// PolicyCap and PolicyShare are values of --policy. PolicyCap sets the maximum to the
// guarantee, PolicyShare to all of the GPU's time.
const (
	PolicyCap   = "cap"
	PolicyShare = "share"
)

// SetMaximum sets the maximum from the command line: a policy's name, or a percentage of the
// GPU's time, but not both. "" and 0 stand for PolicyCap.
func (r *Request) SetMaximum(policy string, most int) error {
	option := "--cores-max"
	switch {
	case policy != "" && most != 0:
		return errors.New("--policy and --cores-max are both set: leave --policy out")
	case policy == PolicyShare:
		option, most = "--policy share", 100
	case policy != "" && policy != PolicyCap:
		return fmt.Errorf("--policy is %q; allowed: %s, %s", policy, PolicyCap, PolicyShare)
	case most == 0:
		return nil
	}
	guarantee := int(r.ComputePPM / (limits.NoComputeLimit / 100))
	if guarantee == 0 || guarantee == 100 {
		return fmt.Errorf("%s needs a guarantee: set --cores, 1 to 99", option)
	}
	if most < guarantee || most > 100 {
		return fmt.Errorf("--cores-max is %d; allowed: %d, which --cores guarantees, to 100 (percent of the GPU's time)", most, guarantee)
	}
	if most > guarantee {
		r.MaximumPPM = uint32(most) * (limits.NoComputeLimit / 100)
	}
	return nil
}

// Empty reports whether the request names neither limits nor GPUs.
func (r Request) Empty() bool {
	return r.MemoryBytes == 0 && r.ComputePPM == 0 && len(r.GPUs) == 0
}

// GPU is a GPU that CUDA lists.
type GPU struct {
	Index       int    `json:"index"`
	UUID        string `json:"uuid"`
	Name        string `json:"name"`
	MemoryBytes uint64 `json:"memoryBytes"`
	// CUDAVersion is the CUDA version that the driver supports, such as 13000.
	CUDAVersion int `json:"cudaVersion"`
}

// Devices converts a request into limits on the GPUs that it names.
func (r Request) Devices(gpus []GPU) ([]limits.Device, error) {
	chosen, err := choose(gpus, r.GPUs)
	if err != nil {
		return nil, err
	}
	devices := make([]limits.Device, len(chosen))
	for i, g := range chosen {
		if r.MemoryBytes > g.MemoryBytes {
			return nil, fmt.Errorf("--memory is %d MiB; allowed: at most the %d MiB of GPU %d (%s)",
				r.MemoryBytes>>20, g.MemoryBytes>>20, g.Index, g.UUID)
		}
		devices[i] = limits.Device{UUID: g.UUID, MemoryBytes: r.MemoryBytes, ComputePPM: r.ComputePPM, MaximumPPM: r.MaximumPPM}
		if r.MemoryBytes == 0 {
			devices[i].MemoryBytes = g.MemoryBytes
		}
		if r.ComputePPM == 0 {
			devices[i].ComputePPM = limits.NoComputeLimit
		}
	}
	return devices, nil
}

func choose(gpus []GPU, names []string) ([]GPU, error) {
	if len(gpus) == 0 {
		return nil, errors.New("CUDA shows no GPU here")
	}
	if len(names) == 0 {
		return gpus[:1], nil
	}
	if len(names) > limits.MaxDevices {
		return nil, fmt.Errorf("--gpu occurs %d times; allowed: at most %d", len(names), limits.MaxDevices)
	}
	var chosen []GPU
	for _, name := range names {
		i := slices.IndexFunc(gpus, func(g GPU) bool { return g.UUID == name || strconv.Itoa(g.Index) == name })
		if i < 0 {
			return nil, fmt.Errorf("--gpu is %q; allowed: %s", name, listed(gpus))
		}
		if slices.Contains(chosen, gpus[i]) {
			return nil, fmt.Errorf("--gpu names GPU %d (%s) twice", gpus[i].Index, gpus[i].UUID)
		}
		chosen = append(chosen, gpus[i])
	}
	return chosen, nil
}

func listed(gpus []GPU) string {
	text := ""
	for i, g := range gpus {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%d or %s", g.Index, g.UUID)
	}
	return text
}
