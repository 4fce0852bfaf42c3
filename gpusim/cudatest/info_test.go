// SPDX-License-Identifier: Apache-2.0

package cudatest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
	"github.com/nri-vgpu/nri-vgpu/gpusim/simtest"
)

// info is the checked part of the output of the workload info.
type info struct {
	CUDA struct {
		InitError string `json:"init_error"`
		Count     int    `json:"device_count"`
		Devices   []struct {
			UUID    string `json:"uuid"`
			Total   uint64 `json:"total_mem"`
			MemInfo struct {
				Free  uint64 `json:"free"`
				Total uint64 `json:"total"`
			} `json:"mem_info"`
		} `json:"devices"`
	} `json:"cuda"`
	NVML struct {
		InitError int `json:"init_error_code"`
		Count     int `json:"device_count"`
		Devices   []struct {
			UUID   string `json:"uuid"`
			Memory struct {
				Total uint64 `json:"total"`
				Used  uint64 `json:"used"`
			} `json:"memory"`
			Processes []struct {
				Pid  int    `json:"pid"`
				Used uint64 `json:"used"`
			} `json:"processes"`
		} `json:"devices"`
	} `json:"nvml"`
}

// TestInfo compares CUDA's and NVML's view of the same machine.
func TestInfo(t *testing.T) {
	machine := simtest.New(t, 2, memoryBytes)
	var got info
	runWorkload(t, machine, &got, "info", "--context")
	if got.CUDA.Count != 2 || got.NVML.Count != 2 {
		t.Fatalf("%+v", got)
	}
	for i, device := range got.CUDA.Devices {
		if device.UUID != got.NVML.Devices[i].UUID {
			t.Errorf("device %d is %s for CUDA, %s for NVML", i, device.UUID, got.NVML.Devices[i].UUID)
		}
		if device.Total != memoryBytes || device.MemInfo.Total != memoryBytes || got.NVML.Devices[i].Memory.Total != memoryBytes {
			t.Errorf("%+v and %+v", device, got.NVML.Devices[i])
		}
		if device.MemInfo.Free != memoryBytes-contextBytes {
			t.Errorf("%+v", device)
		}
	}
}

// TestStartTakesItsTime starts a process on GPUs whose driver starts slowly. cuInit takes the
// longest time of the GPUs, and each context takes its GPU's time.
func TestStartTakesItsTime(t *testing.T) {
	machine := simtest.NewAs(t, "context_start = 100ms\n[gpu]\ninit = 200ms\n[gpu]\ninit = 300ms\n")
	timed := func(args ...string) time.Duration {
		began := time.Now()
		var got info
		runWorkload(t, machine, &got, "info", args...)
		if got.CUDA.Count != 2 {
			t.Fatalf("%+v", got)
		}
		return time.Since(began)
	}
	if took := timed(); took < 300*time.Millisecond {
		t.Errorf("cuInit took %v", took)
	}
	if took := timed("--context"); took < 500*time.Millisecond {
		t.Errorf("cuInit and two contexts took %v", took)
	}
}

// TestInfoSeesOthers reads a GPU's memory while another process holds a part of it. CUDA, NVML and
// the oracle report the same amount.
func TestInfoSeesOthers(t *testing.T) {
	machine := simtest.New(t, 1, memoryBytes)
	filler := machine.Command(t, simtest.Workload(t, "fill"), "--max", "100MiB", "--hold", "60")
	output, err := filler.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := filler.Start(); err != nil {
		t.Fatal(err)
	}
	var filled fill
	if err := json.NewDecoder(output).Decode(&filled); err != nil {
		t.Fatal(err)
	}
	const held = contextBytes + 100*mib
	var got info
	runWorkload(t, machine, &got, "info", "--context")
	if free := got.CUDA.Devices[0].MemInfo.Free; free != memoryBytes-held-contextBytes {
		t.Errorf("CUDA shows %d bytes free", free)
	}
	device := got.NVML.Devices[0]
	if device.Memory.Used != held || len(device.Processes) != 1 ||
		device.Processes[0].Pid != filler.Process.Pid || device.Processes[0].Used != held {
		t.Errorf("NVML shows %+v", device)
	}
	truth, err := oracle.Open(machine.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer truth.Close()
	processes, err := truth.Processes()
	if err != nil {
		t.Fatal(err)
	}
	if len(processes) != 1 || processes[0].Pid != filled.Pid || processes[0].GPUs[0].Bytes != held ||
		processes[0].GPUs[0].ContextBytes != contextBytes {
		t.Errorf("the oracle reports %+v", processes)
	}
}

// TestInfoInContainer reads from a pid namespace without the process that uses the GPU. The memory
// of the process is visible, but the process is not.
func TestInfoInContainer(t *testing.T) {
	machine := simtest.New(t, 1, memoryBytes)
	simtest.StartHolder(t, machine).Hold(t, 0, 100*mib)
	command := machine.Command(t, simtest.Workload(t, "info"))
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
	}
	output, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	var got info
	if err := json.Unmarshal(output, &got); err != nil {
		t.Fatal(err)
	}
	if device := got.NVML.Devices[0]; device.Memory.Used != 100*mib || len(device.Processes) != 0 {
		t.Errorf("NVML shows %+v", device)
	}
}

func TestInfoSeesOnlyItsDevices(t *testing.T) {
	machine := simtest.New(t, 2, memoryBytes)
	if err := os.Remove(filepath.Join(machine.Dir, "gpu0")); err != nil {
		t.Fatal(err)
	}
	var got info
	runWorkload(t, machine, &got, "info")
	if got.CUDA.Count != 1 || got.NVML.Count != 1 || got.CUDA.Devices[0].UUID != got.NVML.Devices[0].UUID {
		t.Errorf("%+v", got)
	}
}

func TestInfoWithoutDriver(t *testing.T) {
	machine := simtest.New(t, 1, memoryBytes)
	if err := os.Remove(filepath.Join(machine.Dir, "state")); err != nil {
		t.Fatal(err)
	}
	var got info
	runWorkload(t, machine, &got, "info")
	if got.CUDA.InitError != "CUDA_ERROR_NO_DEVICE" || got.NVML.InitError != 9 {
		t.Errorf("%+v", got)
	}
}
