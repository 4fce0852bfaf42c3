// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/nri-vgpu/nri-vgpu/internal/container/ourfiles"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

func TestWhoGetsTheInterposer(t *testing.T) {
	const all = 16384 * mib
	whole := placement.Device{MemoryBytes: all}
	tests := []struct {
		name    string
		devices []placement.Device
		always  bool
		want    bool
	}{
		{"all memory, no limit on time", []placement.Device{whole}, false, false},
		{"all memory, all time", []placement.Device{{MemoryBytes: all, ComputePPM: 1_000_000, Exclusive: true}}, false, false},
		{"the same, as configured", []placement.Device{whole}, true, true},
		{"a byte less than all memory", []placement.Device{{MemoryBytes: all - 1}}, false, true},
		{"a little less than all time", []placement.Device{{MemoryBytes: all, ComputePPM: 999_999}}, false, true},
		{"a limit on memory, though nobody else is there", []placement.Device{{MemoryBytes: all / 2, Exclusive: true}}, false, true},
		{"memory in common with others", []placement.Device{{MemoryBytes: all, MemoryInCommon: true}}, false, true},
		{"two whole GPUs", []placement.Device{whole, whole}, false, false},
		{"one whole GPU and a part of another", []placement.Device{whole, {MemoryBytes: all / 2}}, false, true},
		{"no GPU", nil, false, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			given := adjust.Assignment{Allocation: placement.Allocation{Devices: tt.devices}}
			for range tt.devices {
				given.GPUs = append(given.GPUs, gpu.GPU{MemoryBytes: all})
			}
			var r adjust.Rules
			r.Injection.InterposeWholeGPUs = tt.always
			if got := r.Interposes(given); got != tt.want {
				t.Errorf("interposes: %v, want %v", got, tt.want)
			}
			for i := range given.GPUs {
				given.GPUs[i].MemoryBytes = 0
			}
			if !r.Interposes(given) {
				t.Error("does not interpose while the driver reports no memory")
			}
		})
	}
}

// TestAGPUThatIsNotDescribed checks that no container is created on a GPU that the driver has not
// described since the start of the agent.
func TestAGPUThatIsNotDescribed(t *testing.T) {
	n := newNode(t)
	n.run("p", "main=4096")
	n.hook.opts.GPUs = func() []gpu.GPU { return []gpu.GPU{{UUID: gpuA, Reason: "read the GPU's minor number"}} }
	if _, err := n.create("p"); err == nil || !strings.Contains(err.Error(), "read the GPU's minor number") {
		t.Errorf("got %v", err)
	}
	n.hook.opts.GPUs = func() []gpu.GPU { return testGPUs()[1:] }
	if _, err := n.create("p"); err == nil || !strings.Contains(err.Error(), gpuA+" is no longer in the node") {
		t.Errorf("got %v", err)
	}
	n.hook.opts.GPUs = testGPUs
	mustCreate(t, n, "p")
}

// checkNothingOfOurs checks that a container has its GPU, and that its only
// nri-vgpu mounts are the assignment and the tools.
func checkNothingOfOurs(t *testing.T, n *node, uid string, spec *rspec.Spec) {
	t.Helper()
	if value, set := env(spec, adjust.LDPreload); set {
		t.Errorf("%s=%s", adjust.LDPreload, value)
	}
	for _, destination := range ourfiles.Required {
		if m, ok := mountAt(spec, destination); ok && destination != paths.ContainerVgpuctl {
			t.Errorf("it has %+v", m)
		}
	}
	dir := filepath.Join(n.cfg.Paths.RunDir, "containers", uid, "main")
	if m, _ := mountAt(spec, paths.ContainerAssignment); m.Source != filepath.Join(dir, paths.Assignment) {
		t.Errorf("its assignment is %+v", m)
	}
	if _, err := os.Stat(filepath.Join(dir, limits.LimitsFile)); !os.IsNotExist(err) {
		t.Errorf("it has a limits page: %v", err)
	}
}

func TestWholeGPUsWithoutTheInterposer(t *testing.T) {
	n := newNode(t)
	spec := n.run("w", "main=16384")
	wantEnv(t, spec, adjust.VisibleDevices, gpuA)
	checkNothingOfOurs(t, n, "w", spec)

	if err := start(n, "w", spec); err != nil {
		t.Error(err)
	}
	bare := &rspec.Spec{Process: &rspec.Process{Env: []string{adjust.VisibleDevices + "=all"}}}
	// A user can forge the annotations, so the annotations prove nothing.
	bare.Annotations = spec.Annotations
	if err := start(n, "w", bare); err == nil {
		t.Error("started as it was created without us")
	}
	n.pod("other", "main=16384")
	if err := start(n, "other", spec); err == nil {
		t.Error("started with another's GPU")
	}

	// A new agent recognizes the container by its mounts, even if the container's files are lost.
	for range 2 {
		n.restartHook()
		given, ok := n.ledger.Get("w", "main")
		if !ok || given.Devices[0].UUID != gpuA {
			t.Fatalf("got %+v, %v", given, ok)
		}
		if err := os.RemoveAll(n.cfg.Paths.RunDir); err != nil {
			t.Fatal(err)
		}
	}
	wantEnv(t, mustCreate(t, n, "other"), adjust.VisibleDevices, gpuB)
}

func TestWholeGPUsWithTheInterposer(t *testing.T) {
	n := newNode(t, func(n *node) { n.cfg.Injection.InterposeWholeGPUs = true })
	spec := n.run("w", "main=16384")
	if value, _ := env(spec, adjust.LDPreload); value != adjust.PreloadValue {
		t.Errorf("%s=%s", adjust.LDPreload, value)
	}
	page, _ := mountAt(spec, paths.ContainerLimits)
	devices, err := limits.Read(page.Source)
	if err != nil || len(devices) != 1 || devices[0].MemoryBytes != 16384*mib {
		t.Errorf("limits are %+v, %v", devices, err)
	}
	// After a change of the configuration, the next instance has no interposer.
	n.exit("w")
	n.stopHook()
	n.cfg.Injection.InterposeWholeGPUs = false
	n.startHook()
	checkNothingOfOurs(t, n, "w", mustCreate(t, n, "w"))
}

func TestReservedMemoryIsALimit(t *testing.T) {
	n := newNode(t, func(n *node) { n.cfg.Node.ReservedMemoryMiB = 512 })
	n.pod("w", "main=15872") // all allocatable memory
	if _, ok := mountAt(mustCreate(t, n, "w"), paths.ContainerLimits); !ok {
		t.Error("nothing keeps it from the memory that is kept back")
	}
}
