// SPDX-License-Identifier: Apache-2.0

package detect

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/gpusim/simtest"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu/nvml"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/mountns"
)

// driven returns a node that asks NVML for its GPUs, on a simulated driver. The driver opens its
// state once per process, so all tests share a machine.
func driven(t *testing.T) (*house, *simtest.Machine) {
	t.Helper()
	h := newHouse(t)
	machine := theMachine(t)
	inventory := gpu.NewInventory(nvml.New(nvml.Options{Library: filepath.Join(machine.LibraryDir, "libnvidia-ml.so.1")}), 0)
	gpus, err := inventory.Refresh(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	held := h.holders[containerID]
	held.Devices = []placement.Device{{UUID: gpus[0].UUID, MemoryBytes: 1000 * mib}}
	h.holders[containerID] = held
	h.ask = inventory.Processes
	return h, machine
}

var machineDir string

func theMachine(t *testing.T) *simtest.Machine {
	t.Helper()
	if machineDir != "" {
		return simtest.At(t, machineDir)
	}
	dir, err := os.MkdirTemp("", "detection")
	if err != nil {
		t.Fatal(err)
	}
	machineDir = filepath.Join(dir, "gpusim")
	os.Setenv("GPUSIM_STATE", filepath.Join(machineDir, "state"))
	return simtest.NewAt(t, machineDir, 1, 16<<30)
}

func TestMain(m *testing.M) {
	mountns.Main()
	code := m.Run()
	if machineDir != "" {
		os.RemoveAll(filepath.Dir(machineDir))
	}
	os.Exit(code)
}

// use starts a process of the container that uses the GPU without CUDA.
func (h *house) use(machine *simtest.Machine, options ...string) (pid int) {
	h.Helper()
	pid = machine.Use(h, 0, 300*mib, options...)
	h.place(pid, ours+containerID)
	return pid
}

// TestGraphicsGoAroundTheLimits checks that the detector finds a tenant that uses its GPU only
// through Vulkan.
func TestGraphicsGoAroundTheLimits(t *testing.T) {
	h, machine := driven(t)
	uuid := h.holders[containerID].Devices[0].UUID
	h.registered = true // the process has registered itself
	pid := h.use(machine, "--graphics")
	h.round()
	h.wantTold("p VGPUBypassed process")
	h.wantMetric(1, h.detector.Metrics.unaccounted.WithLabelValues(uuid, "bypass"))
	h.wantMetric(1, h.detector.Metrics.kinds.WithLabelValues(uuid, "graphics"))
	h.wantMetric(0, h.detector.Metrics.kinds.WithLabelValues(uuid, "compute"))
	// The memory of a process without CUDA reduces the memory for processes that compute.
	if got := h.observed(); got != 300*mib {
		t.Errorf("observed are %d bytes", got)
	}

	h.restart(config.Detection{Action: config.DetectReport, HostAction: config.DetectReport})
	h.detector.Allowed = gpu.Graphics
	h.round()
	h.wantTold()
	if got := h.observed(); got != 300*mib {
		t.Errorf("where it is allowed, observed are %d bytes", got)
	}

	h.restart(config.Detection{Action: config.DetectStop, HostAction: config.DetectReport})
	h.round()
	h.wantTold("p VGPUBypassed", "p VGPUStopped")
	eventually.Succeeds(t, 5*time.Second, fmt.Sprintf("process %d is stopped", pid), func(ctx context.Context) error {
		running, err := h.ask(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(running[uuid]) > 0 {
			return fmt.Errorf("%+v", running)
		}
		return nil
	})
}

// TestVideoGoesAroundTheLimits checks that the detector also finds a registered process that
// computes and encodes video.
func TestVideoGoesAroundTheLimits(t *testing.T) {
	h, machine := driven(t)
	uuid := h.holders[containerID].Devices[0].UUID
	h.registered = true
	pid := h.use(machine, "--encode", "30")
	h.round()
	h.wantTold("p VGPUBypassed process", "p VGPUUsageForged")
	h.wantMetric(1, h.detector.Metrics.kinds.WithLabelValues(uuid, "video"))
	machine.EndUse(t, pid)
}

// TestDisplaysAreNotStopped checks that the detector reports the node's display, and does not stop
// it.
func TestDisplaysAreNotStopped(t *testing.T) {
	h, machine := driven(t)
	h.restart(config.Detection{Action: config.DetectStop, HostAction: config.DetectStop})
	draws := machine.Use(t, 0, 300*mib, "--graphics")
	h.place(draws, "/system.slice/display-manager.service")
	computes := machine.Use(t, 0, 300*mib)
	h.place(computes, "/system.slice/computes.service")
	h.round()
	h.wantTold("node VGPUBypassed process", "node VGPUBypassed process", "node VGPUStopped stopped process")
	time.Sleep(50 * time.Millisecond)
	running, err := h.ask(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range running {
		if len(list) != 1 || list[0].PID != draws {
			t.Errorf("there are %+v, want %d alone", list, draws)
		}
	}
	machine.EndUse(t, draws)
}
