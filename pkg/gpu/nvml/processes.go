// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"math"
	"slices"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// notAvailable is NVML's value for a process's memory if the driver does not
// count it.
const notAvailable = math.MaxUint64

// Processes returns the processes that use a GPU now, by the GPU's UUID.
// Processes lists processes with a compute or graphics context, and processes
// with a session of the video encoder. Processes omits GPUs that do not answer.
func (d *Driver) Processes() (map[string][]gpu.Process, error) {
	processes := map[string][]gpu.Process{}
	if err := d.open(); err != nil {
		return nil, err
	}
	if d.unlisted != nil {
		return nil, d.unlisted
	}
	err := d.each(func(uuid string, device gonvml.Device) {
		running, ret := device.GetComputeRunningProcesses()
		if ret != gonvml.SUCCESS {
			return
		}
		list := add(make([]gpu.Process, 0, len(running)), gpu.Compute, running)
		if running, ret = device.GetGraphicsRunningProcesses(); ret == gonvml.SUCCESS {
			list = add(list, gpu.Graphics, running)
		}
		processes[uuid] = add(list, gpu.Video, encoders(device))
	})
	return processes, err
}

// usableLists returns an error for drivers whose lists of processes are not usable. Drivers 535.43 to
// 535.86 write longer entries than NVML documents. go-nvml then reads wrong entries, and the driver
// writes beyond the end of go-nvml's buffer.
func usableLists(lib gonvml.Interface) error {
	version, _ := lib.SystemGetDriverVersion() // "" if the query fails
	var branch, release int
	if n, _ := fmt.Sscanf(version, "%d.%d", &branch, &release); n == 2 && branch == 535 && release >= 43 && release < 98 {
		return fmt.Errorf("the NVIDIA driver %s lists processes in a wrong format: install 535.104.05 or later", version)
	}
	return nil
}

// encoders returns the processes with a session of the video encoder. NVML does not report the
// memory of processes that only encode.
func encoders(device gonvml.Device) []gonvml.ProcessInfo {
	sessions, ret := device.GetEncoderSessions()
	if ret != gonvml.SUCCESS {
		return nil
	}
	running := make([]gonvml.ProcessInfo, len(sessions))
	for i, s := range sessions {
		running[i] = gonvml.ProcessInfo{Pid: s.Pid}
	}
	return running
}

// each calls look for each GPU or MIG device whose handle NVML returns, one after the other.
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
		for _, device := range offered(device) {
			if uuid, ret := device.GetUUID(); ret == gonvml.SUCCESS {
				look(uuid, device)
			}
		}
	}
	return nil
}

// offered returns the MIG devices of a GPU in MIG mode, and the GPU itself otherwise.
func offered(device gonvml.Device) map[int]gonvml.Device {
	devices := map[int]gonvml.Device{0: device}
	if mig, err := inMIGMode(device); mig || err != nil {
		devices, _ = migDevices(device) // List reports the errors
	}
	return devices
}

// find returns the handle of a GPU or MIG device. NVML's search by UUID fails while any GPU of the node
// is lost. find then searches the other GPUs.
func find(lib gonvml.Interface, uuid string) (gonvml.Device, gonvml.Return) {
	found, result := lib.DeviceGetHandleByUUID(uuid)
	if result != gonvml.ERROR_GPU_IS_LOST {
		return found, result
	}
	count, ret := lib.DeviceGetCount()
	if ret != gonvml.SUCCESS {
		return nil, ret
	}
	for index := range count {
		card, ret := lib.DeviceGetHandleByIndex(index)
		if ret != gonvml.SUCCESS {
			continue
		}
		for _, device := range offered(card) {
			if own, ret := device.GetUUID(); ret == gonvml.SUCCESS && own == uuid {
				return device, gonvml.SUCCESS
			}
		}
	}
	return nil, result
}

// add merges the processes of one NVML call into list. A process on several
// lists has the same memory on each.
func add(list []gpu.Process, api gpu.APIs, running []gonvml.ProcessInfo) []gpu.Process {
	for _, p := range running {
		bytes := p.UsedGpuMemory
		if bytes == notAvailable {
			bytes = 0
		}
		k := slices.IndexFunc(list, func(known gpu.Process) bool { return known.PID == int(p.Pid) })
		if k < 0 {
			k = len(list)
			list = append(list, gpu.Process{PID: int(p.Pid)})
		}
		list[k].Bytes = max(list[k].Bytes, bytes)
		list[k].APIs |= api
	}
	return list
}
