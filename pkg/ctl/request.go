// Package ctl is what vgpuctl does: it runs programs under limits without
// Kubernetes, and shows the limits and the use of containers and such runs.
package ctl

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// Request is what a run asks of each of its GPUs.
type Request struct {
	// MemoryBytes is the limit on memory, 0 for all there is.
	MemoryBytes uint64
	// ComputePPM is the limit on GPU time, in parts per million; 0 for none.
	ComputePPM uint32
	// MaximumPPM, where it is above ComputePPM, makes that a guarantee: idle time is lent,
	// and borrowed up to the maximum.
	MaximumPPM uint32
	// GPUs names them by index or UUID; none for the first.
	GPUs []string
}

// ParseRequest reads a request as the command line has it: memory as a
// Kubernetes quantity ("2Gi"), cores in percent; "" and 0 are left out.
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
	if err != nil || !whole || bytes <= 0 {
		return 0, fmt.Errorf("--memory is %q; allowed: an amount of bytes, such as 2Gi or 512Mi", memory)
	}
	return uint64(bytes), nil
}

// Policies are names for two maxima, as --policy has them: cap is that of the guarantee,
// share that of all of the GPU's time.
const (
	PolicyCap   = "cap"
	PolicyShare = "share"
)

// SetMaximum takes what the command line has of the maximum: a policy's name or percent of the
// GPU's time, not both; "" and 0 are left out, which is PolicyCap.
func (r *Request) SetMaximum(policy string, most int) error {
	option := "--cores-max"
	switch {
	case policy != "" && most != 0:
		return errors.New("--policy and --cores-max are given: leave --policy out")
	case policy == PolicyShare:
		option, most = "--policy share", 100
	case policy != "" && policy != PolicyCap:
		return fmt.Errorf("--policy is %q; allowed: %s, %s", policy, PolicyCap, PolicyShare)
	case most == 0:
		return nil
	}
	guarantee := int(r.ComputePPM / (limits.NoComputeLimit / 100))
	if guarantee == 0 || guarantee == 100 {
		return fmt.Errorf("%s needs a guarantee: give --cores, 1 to 99", option)
	}
	if most < guarantee || most > 100 {
		return fmt.Errorf("--cores-max is %d; allowed: %d, which --cores guarantees, to 100 (percent of the GPU's time)", most, guarantee)
	}
	if most > guarantee {
		r.MaximumPPM = uint32(most) * (limits.NoComputeLimit / 100)
	}
	return nil
}

// Empty reports whether nothing is asked for.
func (r Request) Empty() bool {
	return r.MemoryBytes == 0 && r.ComputePPM == 0 && len(r.GPUs) == 0
}

// GPU is a GPU that CUDA shows.
type GPU struct {
	Index       int    `json:"index"`
	UUID        string `json:"uuid"`
	Name        string `json:"name"`
	MemoryBytes uint64 `json:"memoryBytes"`
	// CUDAVersion is the driver's, such as 13000.
	CUDAVersion int `json:"cudaVersion"`
}

// Devices turns a request into limits on the GPUs that it names.
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
		return nil, fmt.Errorf("--gpu is given %d times; allowed: at most %d", len(names), limits.MaxDevices)
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
