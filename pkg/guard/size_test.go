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

	"github.com/containerd/nri/pkg/api"

	"github.com/nri-vgpu/nri-vgpu/pkg/runtimes"
)

// A refusal that is too long is never sent, and the guard gets no further question until
// the runtime starts again.
func TestRefusalsAreBounded(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	// Nearly as long as a container may be; each byte takes four in quotes.
	destination := "/var/run/nvidia-container-devices/" + strings.Repeat("\x7f", runtimes.MostBytes-(4<<10))
	if _, err := n.create(inPod("long"), &api.Container{Mounts: []*api.Mount{{Destination: destination}}}); err == nil || len(err.Error()) > 2<<10 {
		t.Errorf("a volume that asks for a GPU: %.200v", err)
	}
	if adjust, err := n.create(inPod("next"), &api.Container{}); err != nil || !hides(adjust) {
		t.Errorf("the next container: %v, %v", adjust, err)
	}
}

// A runtime starts without a guard that it cannot tell of all pods and containers: GPUs
// would be open to everybody.
func TestTheGuardIsToldOfAllContainers(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	lengths := []int{1 << 20, runtimes.MostBytes - 1<<10}
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
		t.Error("a container that wants every GPU was created")
	}
}

// Of what a runtime tells it of all containers the guard reads nothing, and keeps nothing.
func TestTheGuardKeepsNoContainers(t *testing.T) {
	t.Parallel()
	const containers, length = 300, 400 << 10
	n := newNode(t)
	n.runtime.Stop()
	long := []string{strings.Repeat("x", length)}
	for i := range containers {
		n.containers = append(n.containers, &api.Container{Id: fmt.Sprint("c", i), Name: "main", Env: long})
	}
	n.start()
	if _, err := n.create(inPod("greedy"), wants("all")); err == nil {
		t.Error("a container that wants every GPU was created")
	}
	var status Status
	for end := time.Now().Add(10 * time.Second); status.PID == 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		status, _, _ = Loaded(n.settings.RunDir)
	}
	if took := peak(t, status.PID); took > containers*length/2 {
		t.Errorf("to be told of %d MiB took %d MiB", containers*length>>20, took>>20)
	}
}

// peak returns the most memory that a process has had.
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

// A pod names the devices of its block volumes as it likes.
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
