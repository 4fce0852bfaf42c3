// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// inMIGMode reports whether a GPU is in MIG mode. CUDA then uses only the GPU's MIG devices. Older GPUs
// and drivers have no MIG mode. Another error means that the mode is unknown.
func inMIGMode(device gonvml.Device) (bool, error) {
	switch mode, _, ret := device.GetMigMode(); ret {
	case gonvml.SUCCESS:
		return mode == gonvml.DEVICE_MIG_ENABLE, nil
	case gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_FUNCTION_NOT_FOUND:
		return false, nil
	default:
		return false, nvmlError("read the GPU's MIG mode", ret)
	}
}

// migDevices returns the MIG devices of a GPU by their index. An index may be free.
func migDevices(device gonvml.Device) (map[int]gonvml.Device, error) {
	most, ret := device.GetMaxMigDeviceCount()
	if ret != gonvml.SUCCESS {
		return nil, nvmlError("count the MIG devices", ret)
	}
	devices := map[int]gonvml.Device{}
	for index := range most {
		switch mig, ret := device.GetMigDeviceHandleByIndex(index); ret {
		case gonvml.SUCCESS:
			devices[index] = mig
		case gonvml.ERROR_NOT_FOUND:
		default:
			return nil, nvmlError(fmt.Sprintf("open the MIG device %d", index), ret)
		}
	}
	return devices, nil
}

// noDevices is the reason that operators see for a GPU that no program can use.
const noDevices = "MIG mode is on, and there is no MIG device: create MIG devices (nvidia-smi mig -cgi PROFILE -C), or turn MIG mode off (nvidia-smi -mig 0)"

// describeMIG returns the MIG devices of a GPU in MIG mode, with the GPU's health. If the GPU has no
// MIG devices, describeMIG returns the GPU itself, which is then undivided. If NVML does not name all
// MIG devices, describeMIG returns the GPU itself, which is then unhealthy.
func describeMIG(device gonvml.Device, parent gpu.GPU) []gpu.GPU {
	broken := func(err error) []gpu.GPU {
		parent.Healthy, parent.Reason = false, err.Error()
		return []gpu.GPU{parent}
	}
	devices, err := migDevices(device)
	if err != nil {
		return broken(err)
	}
	if len(devices) == 0 {
		parent.Undivided, parent.Reason = true, cmp.Or(parent.Reason, noDevices)
		return []gpu.GPU{parent}
	}
	var gpus []gpu.GPU
	for _, index := range slices.Sorted(maps.Keys(devices)) {
		g := parent
		g.MIG = gpu.MIG{Parent: parent.UUID, Index: index}
		g.MemoryBytes, g.Multiprocessors = 0, 0
		if err := identifyMIG(devices[index], &g); err != nil && g.UUID == "" {
			return broken(err)
		} else if err != nil {
			g.Healthy, g.Reason = false, err.Error()
		}
		gpus = append(gpus, g)
	}
	return withoutShared(gpus)
}

// withoutShared makes the MIG devices unhealthy that share the memory of one GPU instance. NVML reports
// the instance's whole memory for each of these devices, so their limits would exceed the memory.
func withoutShared(gpus []gpu.GPU) []gpu.GPU {
	devices := map[int]int{} // by GPU instance
	for _, g := range gpus {
		devices[g.MIG.Instance]++
	}
	for k := range gpus {
		if instance := gpus[k].MIG.Instance; gpus[k].Healthy && devices[instance] > 1 {
			gpus[k].Healthy = false
			gpus[k].Reason = fmt.Sprintf("it shares the memory of GPU instance %d with other MIG devices: create one compute instance that fills the GPU instance (nvidia-smi mig -cgi PROFILE -C)", instance)
		}
	}
	return gpus
}

// identifyMIG reads the fixed properties of a MIG device. NVML reports the PCI address and the minor
// number of the physical GPU only.
func identifyMIG(device gonvml.Device, g *gpu.GPU) error {
	var ret gonvml.Return
	if g.UUID, ret = device.GetUUID(); ret != gonvml.SUCCESS {
		g.UUID = ""
		return nvmlError("read the MIG device's UUID", ret)
	}
	if g.Name, ret = device.GetName(); ret != gonvml.SUCCESS {
		return nvmlError("read the MIG device's name", ret)
	}
	if g.MIG.Instance, ret = device.GetGpuInstanceId(); ret != gonvml.SUCCESS {
		return nvmlError("read the MIG device's GPU instance", ret)
	}
	if g.MIG.Compute, ret = device.GetComputeInstanceId(); ret != gonvml.SUCCESS {
		return nvmlError("read the MIG device's compute instance", ret)
	}
	if attributes, ret := device.GetAttributes(); ret == gonvml.SUCCESS {
		g.Multiprocessors = int(attributes.MultiprocessorCount)
	}
	memory, ret := device.GetMemoryInfo()
	if ret != gonvml.SUCCESS {
		return nvmlError("read the MIG device's memory", ret)
	}
	g.MemoryBytes = memory.Total
	return nil
}
