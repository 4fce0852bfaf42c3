package nvml

import (
	"math"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// notAvailable is what NVML says of a process's memory where the driver does
// not count it.
const notAvailable = math.MaxUint64

// Processes gives those that compute now, by the GPU's UUID. GPUs that do not
// answer are left out.
func (d *Driver) Processes() (map[string][]gpu.Process, error) {
	if err := d.open(); err != nil {
		return nil, err
	}
	count, ret := d.lib.DeviceGetCount()
	if ret != gonvml.SUCCESS {
		d.close()
		return nil, nvmlError("count the GPUs", ret)
	}
	processes := make(map[string][]gpu.Process, count)
	for index := range count {
		device, ret := d.lib.DeviceGetHandleByIndex(index)
		if ret != gonvml.SUCCESS {
			continue
		}
		uuid, ret := device.GetUUID()
		if ret != gonvml.SUCCESS {
			continue
		}
		if running, ret := device.GetComputeRunningProcesses(); ret == gonvml.SUCCESS {
			processes[uuid] = describeProcesses(running)
		}
	}
	return processes, nil
}

func describeProcesses(running []gonvml.ProcessInfo) []gpu.Process {
	processes := make([]gpu.Process, 0, len(running))
	for _, p := range running {
		bytes := p.UsedGpuMemory
		if bytes == notAvailable {
			bytes = 0
		}
		processes = append(processes, gpu.Process{PID: int(p.Pid), Bytes: bytes})
	}
	return processes
}
