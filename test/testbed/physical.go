// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
)

// A holding is the memory and time of one process on one GPU.
type holding struct {
	pid   int // on this machine
	uuid  string
	bytes uint64
	// busy is the GPU time of the process, which real GPUs do not report.
	busy time.Duration
}

// GPUTime returns the time that the pod's processes have had on all GPUs, and the simulator's time
// of the measurement. A rate is the quotient of two differences.
func (b *Bed) GPUTime(pod *corev1.Pod) (had, at time.Duration, err error) {
	simulated, ok := b.physical.(simulator)
	if !ok {
		return 0, 0, errors.New("a real GPU does not report a process's time")
	}
	processes, err := simulated.Processes()
	if err != nil {
		return 0, 0, fmt.Errorf("query the simulated GPU: %w", err)
	}
	for _, process := range processes {
		ours, err := runsIn(process.Pid, pod)
		if err != nil {
			return 0, 0, err
		}
		for _, use := range process.GPUs {
			if ours {
				had += time.Duration(use.GPUTimeNs)
			}
		}
	}
	return had, time.Duration(simulated.Clock()), nil
}

// NVMLCalls returns, by pid on this machine, the number of NVML calls of each living process of
// the pod that uses a GPU.
func (b *Bed) NVMLCalls(pod *corev1.Pod) (map[int]uint64, error) {
	simulated, ok := b.physical.(simulator)
	if !ok {
		return nil, errors.New("a real GPU does not count calls of NVML")
	}
	processes, err := simulated.Processes()
	if err != nil {
		return nil, fmt.Errorf("query the simulated GPU: %w", err)
	}
	calls := map[int]uint64{}
	for _, process := range processes {
		ours, err := runsIn(process.Pid, pod)
		if err != nil {
			return nil, err
		}
		if ours {
			calls[process.Pid] = process.NVMLCalls
		}
	}
	return calls, nil
}

// physical reports, from outside, the memory that processes really hold. The source is the
// simulator for simulated GPUs, and NVML for real GPUs.
type physical interface {
	UUIDs() ([]string, error)
	Holdings() ([]holding, error)
	Close()
}

func (b *Bed) openPhysical() (physical, error) {
	if !b.options.Simulated() {
		return openNVML()
	}
	simulated, err := oracle.Open(filepath.Join(b.Cluster.Root(), "dev", "gpusim"))
	if err != nil {
		return nil, fmt.Errorf("query the simulated GPU: %w", err)
	}
	return simulator{simulated}, nil
}

type simulator struct{ *oracle.Oracle }

func (s simulator) Close() { _ = s.Oracle.Close() }

func (s simulator) UUIDs() ([]string, error) {
	gpus, err := s.GPUs()
	if err != nil {
		return nil, fmt.Errorf("query the simulated GPU: %w", err)
	}
	uuids := make([]string, len(gpus))
	for i := range gpus {
		uuids[i] = gpus[i].UUID
	}
	return uuids, nil
}

func (s simulator) Holdings() ([]holding, error) {
	processes, err := s.Processes()
	if err != nil {
		return nil, fmt.Errorf("query the simulated GPU: %w", err)
	}
	var all []holding
	for _, process := range processes {
		for _, use := range process.GPUs {
			all = append(all, holding{pid: process.Pid, uuid: use.UUID, bytes: use.Bytes, busy: time.Duration(use.GPUTimeNs)})
		}
	}
	return all, nil
}

type realGPUs struct{ devices []nvml.Device }

func openNVML() (physical, error) {
	if code := nvml.Init(); code != nvml.SUCCESS {
		return nil, fmt.Errorf("start NVML: %s", nvml.ErrorString(code))
	}
	count, code := nvml.DeviceGetCount()
	if code != nvml.SUCCESS {
		return nil, fmt.Errorf("count GPUs: %s", nvml.ErrorString(code))
	}
	gpus := realGPUs{}
	for i := range count {
		device, code := nvml.DeviceGetHandleByIndex(i)
		if code != nvml.SUCCESS {
			return nil, fmt.Errorf("open GPU %d: %s", i, nvml.ErrorString(code))
		}
		gpus.devices = append(gpus.devices, device)
	}
	return gpus, nil
}

func (realGPUs) Close() { _ = nvml.Shutdown() }

func (r realGPUs) UUIDs() ([]string, error) {
	uuids := make([]string, len(r.devices))
	for i, device := range r.devices {
		uuid, code := device.GetUUID()
		if code != nvml.SUCCESS {
			return nil, fmt.Errorf("UUID of GPU %d: %s", i, nvml.ErrorString(code))
		}
		uuids[i] = uuid
	}
	return uuids, nil
}

func (r realGPUs) Holdings() ([]holding, error) {
	uuids, err := r.UUIDs()
	if err != nil {
		return nil, err
	}
	var all []holding
	for i, device := range r.devices {
		processes, code := device.GetComputeRunningProcesses()
		if code != nvml.SUCCESS {
			return nil, fmt.Errorf("processes on GPU %d: %s", i, nvml.ErrorString(code))
		}
		for _, process := range processes {
			all = append(all, holding{pid: int(process.Pid), uuid: uuids[i], bytes: process.UsedGpuMemory})
		}
	}
	return all, nil
}
