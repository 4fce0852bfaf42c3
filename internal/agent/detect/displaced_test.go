// SPDX-License-Identifier: Apache-2.0

package detect

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/container/ourfiles"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/mountns"
)

// inMounts starts the simulated node's container, with our files mounted as a runtime mounts them.
func inMounts(h *house) *mountns.Namespace {
	h.Helper()
	image, host := h.TempDir(), h.TempDir()
	if err := os.MkdirAll(filepath.Join(image, "data"), 0o755); err != nil {
		h.Fatal(err)
	}
	var mounts []ourfiles.Mount
	var binds []mountns.Bind
	for _, destination := range ourfiles.Required {
		source := filepath.Join(host, strings.ReplaceAll(destination, "/", "_"))
		if err := os.WriteFile(source, nil, 0o644); err != nil {
			h.Fatal(err)
		}
		mounts = append(mounts, ourfiles.Mount{Source: source, Destination: destination})
		binds = append(binds, mountns.Bind{From: source, To: destination})
	}
	n := mountns.New(h, image, binds...)
	h.inContainer(n.PID)
	h.carried = map[string]ourfiles.Carried{containerID: {PID: n.PID, Mounts: mounts}}
	return n
}

// inContainer moves a process into the simulated node's container, with a valid registration.
func (h *house) inContainer(pid int) {
	h.Helper()
	h.place(pid, ours+containerID)
	h.link(pid, "root")
	h.link(pid, "ns")
	h.processes[gpuA] = append(h.processes[gpuA], gpu.Process{PID: pid, Bytes: mib, APIs: gpu.Compute})
	h.registered = true
}

// link adds the kernel's entry of a process to the simulated node's procfs.
func (h *house) link(pid int, name string) {
	h.Helper()
	if err := os.Symlink(procPath("/proc", pid, name), procPath(h.proc, pid, name)); err != nil {
		h.Fatal(err)
	}
}

// TestFilesThatAreTakenAway checks that the detector does not trust a registered process in a
// container whose new programs cannot load the interposer.
func TestFilesThatAreTakenAway(t *testing.T) {
	const aside = paths.ContainerHomeDir + ".x"
	h := newHouse(t)
	n := inMounts(h)
	h.round()
	h.wantTold()
	h.wantMetric(0, h.detector.Metrics.displaced)
	n.Do("rename", paths.ContainerHomeDir, aside)
	h.round()
	h.wantTold("p VGPUBypassed nri-vgpu's files were removed in container main", "p VGPUBypassed process ")
	h.wantMetric(1, h.detector.Metrics.displaced)
	h.wantMetric(1, h.detector.Metrics.unaccounted.WithLabelValues(gpuA, "bypass"))
	h.round()
	h.wantTold()
	n.Do("rename", aside, paths.ContainerHomeDir)
	h.round()
	h.wantTold()
	h.wantMetric(0, h.detector.Metrics.displaced)
	if h.wantMetric(0, h.detector.Metrics.stopped.WithLabelValues("bypass")); !alive(n.PID) {
		t.Error("it was stopped")
	}
	// The detector also finds displaced files in a container without a process on a GPU.
	h.processes[gpuA] = nil
	n.Do("remove", "/data")
	n.Do("rename", paths.ContainerHomeDir, aside)
	h.round()
	h.wantTold("p VGPUBypassed nri-vgpu's files were removed in container main")
}

func TestWhoUsesAGPUWithoutOurFilesIsStopped(t *testing.T) {
	h := newHouse(t)
	cfg := config.Default().Detection
	cfg.Action = config.DetectStop
	h.restart(cfg)
	n := inMounts(h)
	h.round()
	if !alive(n.PID) {
		t.Fatal("a container is stopped in which all is well")
	}
	n.Do("rename", paths.ContainerHomeDir, "/data/x")
	h.round()
	h.wantTold("p VGPUBypassed nri-vgpu's files were removed", "p VGPUBypassed process", "p VGPUStopped")
	eventually.Holds(t, 5*time.Second, "it has ended", func() bool { return !alive(n.PID) })
}

// TestAProcessWithItsOwnMounts checks that the detector checks the files in the mount namespace of
// each process on a GPU.
func TestAProcessWithItsOwnMounts(t *testing.T) {
	h := newHouse(t)
	inMounts(h)
	other := mountns.New(t, t.TempDir())
	h.inContainer(other.PID)
	h.round()
	h.wantTold("p VGPUBypassed nri-vgpu's files were removed", "p VGPUBypassed process", "p VGPUBypassed process")
}

// TestFilesThatCannotBeLookedAt checks that the detector still reports a container that hangs its
// own file systems.
func TestFilesThatCannotBeLookedAt(t *testing.T) {
	h := newHouse(t)
	n := inMounts(h)
	n.Do("hang", "/usr/local")
	h.round()
	h.wantTold("p VGPUBypassed nri-vgpu's files were removed", "p VGPUBypassed process")
}

// TestAFirstProcessOfAnotherContainer checks that the detector ignores a process of another
// container that has reused the first process's id.
func TestAFirstProcessOfAnotherContainer(t *testing.T) {
	h := newHouse(t)
	n := inMounts(h)
	h.processes[gpuA] = nil
	n.Do("rename", paths.ContainerHomeDir, "/data/x")
	h.put(n.PID, "cgroup", "0::"+ours+strings.Repeat("ef", 32)+"\n")
	h.round()
	h.wantTold()
}

func procPath(proc string, pid int, name string) string {
	return filepath.Join(proc, strconv.Itoa(pid), name)
}

// alive reports whether a child of this process runs.
func alive(pid int) bool {
	stat, err := os.ReadFile(procPath("/proc", pid, "stat"))
	return err == nil && !slices.Contains(strings.Fields(string(stat)), "Z")
}
