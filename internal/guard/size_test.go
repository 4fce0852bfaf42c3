// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"

	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/internal/nri"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// TestRefusalsAreBounded checks that the guard shortens long refusals. A plugin cannot send a
// refusal that is too long, and then gets no further request until the runtime restarts.
func TestRefusalsAreBounded(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	// The path is nearly as long as a container may be. Quoting expands each byte to four.
	destination := "/var/run/nvidia-container-devices/" + strings.Repeat("\x7f", nri.MostBytes-(4<<10))
	if _, err := n.create(inPod("long"), &api.Container{Mounts: []*api.Mount{{Destination: destination}}}); err == nil || len(err.Error()) > 2<<10 {
		t.Errorf("a volume that requests a GPU: %.200v", err)
	}
	if adjust, err := n.create(inPod("next"), &api.Container{}); err != nil || !hides(adjust) {
		t.Errorf("the next container: %v, %v", adjust, err)
	}
}

// TestTheGuardGetsAllContainers checks that a runtime starts the guard on a node with long pods
// and containers. If a runtime cannot report all pods and containers to the guard, the runtime
// starts without the guard. Every container could then get GPUs.
func TestTheGuardGetsAllContainers(t *testing.T) {
	wait(t)
	n := newNode(t)
	lengths := []int{1 << 20, nri.MostBytes - 1<<10}
	for i := range 20 {
		pod := inPod(fmt.Sprint("u", i))
		for _, length := range lengths {
			pod.Labels = map[string]string{"long": strings.Repeat("x", length)}
			if err := n.runtime.RunPodSandbox(t.Context(), &api.RunPodSandboxRequest{Pod: pod}); err == nil {
				break
			}
		}
		for _, length := range lengths {
			c := &api.Container{Env: []string{"LONG=" + strings.Repeat("x", length)}}
			if _, err := n.create(inPod(pod.GetUid()), c); err == nil {
				n.pods, n.containers = append(n.pods, pod), append(n.containers, c)
				break
			}
		}
	}
	if len(n.containers) != 20 {
		t.Errorf("%d containers were created", len(n.containers))
	}
	n.runtime.Stop()
	n.start()
	if _, err := n.create(inPod("greedy"), wants("all")); err == nil {
		t.Error("a container that requests every GPU was created")
	}
}

// wait raises the runtimes' time limit for plugins from 2 s to 30 s. On a busy machine, the runtime
// itself needs more than 2 s to encode megabytes. The calling test must not run in parallel.
func wait(t *testing.T) {
	t.Helper()
	adaptation.SetPluginRequestTimeout(30 * time.Second)
	t.Cleanup(func() { adaptation.SetPluginRequestTimeout(adaptation.DefaultPluginRequestTimeout) })
}

// TestTheGuardKeepsNoContainers checks that the guard keeps only the sizes of the containers that a
// runtime reports.
func TestTheGuardKeepsNoContainers(t *testing.T) {
	wait(t)
	const containers, length = 300, 400 << 10
	n := newNode(t)
	n.runtime.Stop()
	long := []string{strings.Repeat("x", length)}
	for i := range containers {
		n.containers = append(n.containers, &api.Container{Id: fmt.Sprint("c", i), Name: "main", Env: long})
	}
	n.start()
	if _, err := n.create(inPod("greedy"), wants("all")); err == nil {
		t.Error("a container that requests every GPU was created")
	}
	var status guardfile.Status
	eventually.Holds(t, 10*time.Second, "the status has the guard's pid", func() bool {
		status, _, _ = guardfile.Loaded(n.settings.RunDir)
		return status.PID != 0
	})
	if took := peak(t, status.PID); took > containers*length/2 {
		t.Errorf("reports of %d MiB took %d MiB", containers*length>>20, took>>20)
	}
}

// peak returns a process's peak memory.
func peak(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := bytes.Cut(status, []byte("VmHWM:"))
	kib, err := strconv.Atoi(string(bytes.Fields(line)[0]))
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// TestABlockVolumeMakesNothingPrivileged checks that the guard allows a block volume at any path. A
// pod chooses the paths of its block volumes.
func TestABlockVolumeMakesNothingPrivileged(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	devices := []*api.LinuxDevice{{Path: "/dev/kmsg", Type: "b", Major: 7}}
	if _, err := n.create(inPod("block"), &api.Container{Linux: &api.LinuxContainer{Devices: devices}}); err != nil {
		t.Errorf("a block volume: %v", err)
	}
	devices = append(devices, &api.LinuxDevice{Path: "/dev/nvidia0", Type: "c", Major: 195})
	if _, err := n.create(inPod("gpu"), &api.Container{Linux: &api.LinuxContainer{Devices: devices}}); err == nil {
		t.Error("with a GPU's device node it was created")
	}
}
