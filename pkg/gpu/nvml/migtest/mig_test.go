// SPDX-License-Identifier: Apache-2.0

// Package migtest tests package nvml on a simulated GPU in MIG mode. A process loads a driver only
// once, so these tests have a separate program.
package migtest

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/gpusim/simtest"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu/nvml"
)

const gib = 1 << 30

// config has a GPU with two MIG devices, a GPU in MIG mode without devices, and a whole GPU.
const config = `
[gpu]
name = NVIDIA H100
memory = 80GiB
[mig 1g.10gb]
[mig 3g.40gb]
[gpu]
mig = yes
[gpu]
memory = 40GiB
`

// TestMIG lists the MIG devices, their processes and their errors.
func TestMIG(t *testing.T) {
	machine := simtest.NewAs(t, config)
	t.Setenv("GPUSIM_STATE", filepath.Join(machine.Dir, "state"))
	options := nvml.Options{Library: filepath.Join(machine.LibraryDir, "libnvidia-ml.so.1")}
	inv := gpu.NewInventory(nvml.New(options), 10*time.Second)
	gpus := refresh(t, inv)
	if len(gpus) != 3 {
		t.Fatalf("the driver lists %+v", gpus)
	}
	small, large, whole := gpus[0], gpus[1], gpus[2]
	if !strings.HasPrefix(small.UUID, "MIG-") || small.MIG.Index != 0 || small.MIG.Instance != 1 ||
		small.Name != "NVIDIA H100 MIG 1g.10gb" || small.MemoryBytes != 10*gib || small.Index != 0 || small.PCIBusID == "" {
		t.Errorf("the first MIG device is %+v of %+v", small, small.MIG)
	}
	if large.MIG.Parent != small.MIG.Parent || large.MIG.Parent == "" || large.MemoryBytes != 40*gib {
		t.Errorf("the second MIG device is %+v", large)
	}
	if whole.MIG != (gpu.MIG{}) || whole.Index != 2 || !strings.HasPrefix(whole.UUID, "GPU-") {
		t.Errorf("the GPU without MIG is %+v", whole)
	}
	for _, g := range gpus {
		if !g.Healthy {
			t.Errorf("%s is unhealthy: %s", g.UUID, g.Reason)
		}
	}
	if out := inv.LeftOut(); len(out) != 1 || !out[0].Undivided || !out[0].Healthy || out[0].Index != 1 {
		t.Errorf("the GPU without MIG devices is %+v", out)
	}
	checkProcesses(t, machine, inv, large)
	checkErrors(t, machine, inv, options)
	checkLost(t, machine, inv)
}

func refresh(t *testing.T, inv *gpu.Inventory) []gpu.GPU {
	t.Helper()
	gpus, err := inv.Refresh(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return gpus
}

// checkProcesses holds memory of a MIG device. Index 2 of the simulator is this device. Only the
// device lists the process.
func checkProcesses(t *testing.T, machine *simtest.Machine, inv *gpu.Inventory, large gpu.GPU) {
	t.Helper()
	holder := simtest.StartHolder(t, machine)
	if !holder.Hold(t, 2, 30*gib) {
		t.Fatal("a MIG device of 40 GiB does not take 30 GiB")
	}
	processes, err := inv.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for uuid, list := range processes {
		switch {
		case uuid != large.UUID && len(list) != 0:
			t.Errorf("%s lists %+v", uuid, list)
		case uuid == large.UUID && (len(list) != 1 || list[0].PID != holder.Pid || list[0].Bytes != 30*gib):
			t.Errorf("the MIG device lists %+v", list)
		}
	}
	holder.Kill(t)
}

// checkErrors injects an error of one GPU instance, and an error of the whole GPU.
func checkErrors(t *testing.T, machine *simtest.Machine, inv *gpu.Inventory, options nvml.Options) {
	t.Helper()
	events := nvml.NewEvents(options)
	defer events.Close()
	if x, err := events.Next(time.Millisecond); err == nil {
		t.Fatalf("without an error the driver reports %+v", x)
	}
	card := inv.GPUs()[0].MIG.Parent
	for entry, want := range map[string]gpu.XID{
		"2": {UUID: card, Number: 79, Instance: 3},
		"0": {UUID: card, Number: 79},
	} {
		machine.Tool(t, "inject", "--gpu", entry, "xid", "79", machine.Dir)
		if x, err := events.Next(5 * time.Second); err != nil || x != want {
			t.Errorf("the driver reports %+v, %v, want %+v", x, err, want)
		}
	}
}

// checkLost loses the GPU with MIG devices, and its MIG devices become unhealthy. A destroyed MIG
// device disappears.
func checkLost(t *testing.T, machine *simtest.Machine, inv *gpu.Inventory) {
	t.Helper()
	machine.Tool(t, "inject", "--gpu", "0", "lost", machine.Dir)
	for _, g := range refresh(t, inv) {
		if g.Healthy == (g.Index == 0) {
			t.Errorf("with GPU 0 lost: %+v", g)
		}
	}
	machine.Tool(t, "inject", "clear", machine.Dir)
	for _, g := range refresh(t, inv) {
		if !g.Healthy {
			t.Errorf("with GPU 0 back: %+v", g)
		}
	}
	made := strings.TrimSpace(machine.Tool(t, "mig", "create", "0", "2g.20gb", machine.Dir))
	if gpus := refresh(t, inv); len(gpus) != 4 || gpus[2].UUID != made || !gpus[2].Healthy {
		t.Errorf("with a new MIG device: %+v", gpus)
	}
	machine.Tool(t, "mig", "destroy", made, machine.Dir)
	if gpus := refresh(t, inv); len(gpus) != 3 {
		t.Errorf("with the MIG device destroyed: %+v", gpus)
	}
}
