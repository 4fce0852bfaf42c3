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
	processes := map[string][]gpu.Process{}
	err := d.each(func(uuid string, device gonvml.Device) {
		if running, ret := device.GetComputeRunningProcesses(); ret == gonvml.SUCCESS {
			processes[uuid] = describeProcesses(running)
		}
	})
	return processes, err
}

// each looks at the GPUs that answer, one after the other.
func (d *Driver) each(look func(uuid string, device gonvml.Device)) error {
	if err := d.open(); err != nil {
		return err
	}
	count, ret := d.lib.DeviceGetCount()
	if ret != gonvml.SUCCESS {
		d.close()
		return nvmlError("count the GPUs", ret)
	}
	for index := range count {
		device, ret := d.lib.DeviceGetHandleByIndex(index)
		if ret != gonvml.SUCCESS {
			continue
		}
		if uuid, ret := device.GetUUID(); ret == gonvml.SUCCESS {
			look(uuid, device)
		}
	}
	return nil
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
