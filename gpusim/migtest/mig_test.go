// SPDX-License-Identifier: Apache-2.0

// Package migtest tests the simulated Multi-Instance GPU (MIG) through NVML and CUDA, as their users
// call them.
package migtest

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
	"github.com/nri-vgpu/nri-vgpu/gpusim/simtest"
)

const gib = 1 << 30

// config has a GPU with two MIG devices, a GPU in MIG mode without devices, and a whole GPU.
const config = `
[gpu]
name = NVIDIA H100
memory = 80GiB
[mig 1g.10gb]
[mig 3g.40gb]
sm_count = 60
[gpu]
mig = yes
[gpu]
memory = 40GiB
`

// instance is NVML's description of a MIG device.
type instance struct {
	Name         string
	Memory       uint64
	SMs          uint32
	GPU, Compute int
	Index        int
	Kind         string // of the UUID
}

func succeed(t *testing.T, result nvml.Return) {
	t.Helper()
	if result != nvml.SUCCESS {
		t.Fatal(nvml.ErrorString(result))
	}
}

func expect(t *testing.T, call string, got, want nvml.Return) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", call, nvml.ErrorString(got), nvml.ErrorString(want))
	}
}

// TestMIG is one test, because a process opens the simulated NVML for one machine.
func TestMIG(t *testing.T) {
	machine := simtest.NewAs(t, config)
	t.Setenv("GPUSIM_STATE", filepath.Join(machine.Dir, "state"))
	library := nvml.New(nvml.WithLibraryPath(filepath.Join(machine.LibraryDir, "libnvidia-ml.so.1")))
	succeed(t, library.Init())
	truth, err := oracle.Open(machine.Dir)
	if err != nil {
		t.Fatal(err)
	}
	count, result := library.DeviceGetCount()
	succeed(t, result)
	if count != 3 {
		t.Fatalf("NVML lists %d GPUs", count)
	}
	checkModes(t, library)
	card, result := library.DeviceGetHandleByIndex(0)
	succeed(t, result)
	devices := migDevices(t, card)
	want := []instance{
		{"NVIDIA H100 MIG 1g.10gb", 10 * gib, 16, 1, 0, 0, "MIG-"},
		{"NVIDIA H100 MIG 3g.40gb", 40 * gib, 60, 2, 0, 1, "MIG-"},
	}
	for i, device := range devices {
		if diff := cmp.Diff(want[i], describe(t, device)); diff != "" {
			t.Error(diff)
		}
	}
	checkIdentity(t, library, card, devices[1], truth)
	checkUnsupported(t, card, devices[0])
	checkUse(t, machine, card, devices)
	checkEvents(t, library, machine, card, devices)
	checkFaults(t, machine, card, devices[0])
	checkChanges(t, machine, card)
	checkCUDA(t, machine, truth)
}

func checkModes(t *testing.T, library nvml.Interface) {
	t.Helper()
	for index, want := range []int{nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_DISABLE} {
		device, result := library.DeviceGetHandleByIndex(index)
		succeed(t, result)
		mode, _, result := device.GetMigMode()
		succeed(t, result)
		most, result := device.GetMaxMigDeviceCount()
		succeed(t, result)
		if mode != want || (most > 0) != (want == nvml.DEVICE_MIG_ENABLE) {
			t.Errorf("GPU %d: mode %d, at most %d MIG devices", index, mode, most)
		}
	}
}

// migDevices returns the MIG devices of a GPU. An index without a device is not the end.
func migDevices(t *testing.T, card nvml.Device) (devices []nvml.Device) {
	t.Helper()
	most, result := card.GetMaxMigDeviceCount()
	succeed(t, result)
	for index := range most {
		device, result := card.GetMigDeviceHandleByIndex(index)
		if result == nvml.ERROR_NOT_FOUND {
			continue
		}
		succeed(t, result)
		devices = append(devices, device)
	}
	return devices
}

func describe(t *testing.T, device nvml.Device) (i instance) {
	t.Helper()
	var result nvml.Return
	i.Name, result = device.GetName()
	succeed(t, result)
	memory, result := device.GetMemoryInfo()
	succeed(t, result)
	i.Memory = memory.Total
	attributes, result := device.GetAttributes()
	succeed(t, result)
	i.SMs = attributes.MultiprocessorCount
	i.GPU, result = device.GetGpuInstanceId()
	succeed(t, result)
	i.Compute, result = device.GetComputeInstanceId()
	succeed(t, result)
	i.Index, result = device.GetIndex()
	succeed(t, result)
	uuid, result := device.GetUUID()
	succeed(t, result)
	i.Kind = uuid[:4]
	return i
}

func checkIdentity(t *testing.T, library nvml.Interface, card, device nvml.Device, truth *oracle.Oracle) {
	t.Helper()
	uuid, result := device.GetUUID()
	succeed(t, result)
	gpus, err := truth.GPUs()
	if err != nil || gpus[2].UUID != uuid {
		t.Errorf("NVML's UUID is %s, the oracle has %+v, %v", uuid, gpus, err)
	}
	found, result := library.DeviceGetHandleByUUID(uuid)
	succeed(t, result)
	parent, result := found.GetDeviceHandleFromMigDeviceHandle()
	succeed(t, result)
	if found != device || parent != card {
		t.Error("the UUID leads to another device, or to a device of another GPU")
	}
	for handle, want := range map[nvml.Device]bool{device: true, card: false} {
		if is, result := handle.IsMigDeviceHandle(); result != nvml.SUCCESS || is != want {
			t.Errorf("got %v, %v, want %v", is, result, want)
		}
	}
}

// checkUnsupported calls functions that NVML does not support for MIG devices, or for GPUs in MIG
// mode.
func checkUnsupported(t *testing.T, card, device nvml.Device) {
	t.Helper()
	_, result := device.GetMinorNumber()
	expect(t, "minor number", result, nvml.ERROR_NOT_SUPPORTED)
	_, result = device.GetPciInfo()
	expect(t, "PCI address", result, nvml.ERROR_NOT_SUPPORTED)
	_, result = card.GetGpuInstanceId()
	expect(t, "GPU instance of a GPU", result, nvml.ERROR_NOT_SUPPORTED)
	for name, handle := range map[string]nvml.Device{"MIG device": device, "GPU": card} {
		_, result = handle.GetUtilizationRates()
		expect(t, "rates of a "+name, result, nvml.ERROR_NOT_SUPPORTED)
		_, result = handle.GetProcessUtilization(0)
		expect(t, "samples of processes of a "+name, result, nvml.ERROR_NOT_SUPPORTED)
		_, _, result = handle.GetSamples(nvml.GPU_UTILIZATION_SAMPLES, 0)
		expect(t, "samples of a "+name, result, nvml.ERROR_NOT_SUPPORTED)
		_, _, result = handle.GetDecoderUtilization()
		expect(t, "the decoder of a "+name, result, nvml.ERROR_NOT_SUPPORTED)
	}
}

// checkUse holds memory of the second MIG device. Index 2 of the oracle is this device.
func checkUse(t *testing.T, machine *simtest.Machine, card nvml.Device, devices []nvml.Device) {
	t.Helper()
	holder := simtest.StartHolder(t, machine)
	if !holder.Hold(t, 2, 30*gib) || holder.Hold(t, 2, 11*gib) {
		t.Fatal("a MIG device of 40 GiB takes 30 GiB, and then not 11 GiB more")
	}
	for name, tt := range map[string]struct {
		device nvml.Device
		want   []nvml.ProcessInfo
		used   uint64
	}{
		"the device": {devices[1], []nvml.ProcessInfo{{Pid: uint32(holder.Pid), UsedGpuMemory: 30 * gib, GpuInstanceId: 2}}, 30 * gib},
		"another":    {devices[0], nil, 0},
		"the GPU":    {card, []nvml.ProcessInfo{{Pid: uint32(holder.Pid), UsedGpuMemory: 30 * gib, GpuInstanceId: 2}}, 30 * gib},
	} {
		got, result := tt.device.GetComputeRunningProcesses()
		succeed(t, result)
		memory, result := tt.device.GetMemoryInfo()
		succeed(t, result)
		if len(got) != len(tt.want) || len(got) == 1 && got[0] != tt.want[0] || memory.Used != tt.used {
			t.Errorf("%s: got %+v and %d bytes, want %+v", name, got, memory.Used, tt.want)
		}
	}
	holder.Kill(t)
}

// checkEvents injects XIDs on a MIG device and on its GPU.
func checkEvents(t *testing.T, library nvml.Interface, machine *simtest.Machine, card nvml.Device, devices []nvml.Device) {
	t.Helper()
	set, result := library.EventSetCreate()
	succeed(t, result)
	succeed(t, card.RegisterEvents(nvml.EventTypeXidCriticalError, set))
	expect(t, "events of a MIG device", devices[0].RegisterEvents(nvml.EventTypeXidCriticalError, set), nvml.ERROR_NOT_SUPPORTED)
	const whole = ^uint32(0)
	for gpu, want := range map[string][2]uint32{"2": {2, 0}, "0": {whole, whole}} {
		machine.Tool(t, "inject", "--gpu", gpu, "xid", "31", machine.Dir)
		event, result := set.Wait(2000)
		succeed(t, result)
		if event.Device != card || event.EventData != 31 || event.GpuInstanceId != want[0] || event.ComputeInstanceId != want[1] {
			t.Errorf("an XID of entry %s is %+v", gpu, event)
		}
	}
	succeed(t, set.Free())
}

func checkFaults(t *testing.T, machine *simtest.Machine, card, device nvml.Device) {
	t.Helper()
	machine.Tool(t, "inject", "--gpu", "0", "lost", machine.Dir)
	_, result := device.GetMemoryInfo()
	expect(t, "memory of a MIG device of a lost GPU", result, nvml.ERROR_GPU_IS_LOST)
	_, result = card.GetMigDeviceHandleByIndex(0)
	expect(t, "MIG devices of a lost GPU", result, nvml.ERROR_GPU_IS_LOST)
	machine.Tool(t, "inject", "clear", machine.Dir)
}

// checkChanges creates and destroys a MIG device while NVML is in use.
func checkChanges(t *testing.T, machine *simtest.Machine, card nvml.Device) {
	t.Helper()
	uuid := strings.TrimSpace(machine.Tool(t, "mig", "create", "0", "2g.20gb", machine.Dir))
	devices := migDevices(t, card)
	if len(devices) != 3 {
		t.Fatalf("the GPU has %d MIG devices", len(devices))
	}
	if got, result := devices[2].GetUUID(); result != nvml.SUCCESS || got != uuid {
		t.Errorf("got %s, %v, want %s", got, result, uuid)
	}
	machine.Tool(t, "mig", "destroy", uuid, machine.Dir)
	if left := migDevices(t, card); len(left) != 2 {
		t.Errorf("%d MIG devices are left", len(left))
	}
	_, result := devices[2].GetUUID()
	expect(t, "a destroyed MIG device", result, nvml.ERROR_INVALID_ARGUMENT)
}

// seen is a checked part of the output of vgpu-devices.
type seen struct {
	UUID   string `json:"uuid"`
	Name   string `json:"name"`
	Memory uint64 `json:"memoryBytes"`
}

// checkCUDA lists CUDA's devices for some values of CUDA_VISIBLE_DEVICES: a process sees a single
// MIG device, or GPUs.
func checkCUDA(t *testing.T, machine *simtest.Machine, truth *oracle.Oracle) {
	t.Helper()
	gpus, err := truth.GPUs()
	if err != nil {
		t.Fatal(err)
	}
	small, large, whole := gpus[1], gpus[2], gpus[4]
	for visible, want := range map[string]oracle.GPU{
		"-":                           small,
		large.UUID:                    large,
		large.UUID + "," + small.UUID: large,
		whole.UUID:                    whole,
		whole.UUID + "," + large.UUID: large,
		small.UUID[:12]:               small,
	} {
		command := machine.Command(t, simtest.Helper(t, "vgpu-devices"))
		if visible != "-" {
			command.Env = append(command.Env, "CUDA_VISIBLE_DEVICES="+visible)
		}
		output, err := command.Output()
		if err != nil {
			t.Fatalf("%s: %v", visible, err)
		}
		var got []seen
		if err := json.Unmarshal(output, &got); err != nil {
			t.Fatalf("%s: %v: %s", visible, err, output)
		}
		if diff := cmp.Diff([]seen{{want.UUID, want.Name, want.MemoryBytes}}, got); diff != "" {
			t.Errorf("with %s: %s", visible, diff)
		}
	}
}
