// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	rspec "github.com/opencontainers/runtime-spec/specs-go"

	kubeevents "github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// process starts a process that appears to belong to a pod. ended returns the signal that ended the
// process, or 0 while the process runs.
func process(t *testing.T, proc, podUID string) (pid int, ended func() syscall.Signal) {
	t.Helper()
	command := exec.Command("sleep", "600")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		_ = command.Wait()
		close(done)
	}()
	t.Cleanup(func() { _ = command.Process.Kill(); <-done })
	write(t, filepath.Join(proc, strconv.Itoa(command.Process.Pid), "cgroup"), "0::/kubepods.slice/kubepods-pod"+podUID+".slice/x\n")
	return command.Process.Pid, func() syscall.Signal {
		select {
		case <-done:
			return command.ProcessState.Sys().(syscall.WaitStatus).Signal()
		default:
			return 0
		}
	}
}

func (n *node) waitTold(pod string, reason kubeevents.Reason) {
	n.t.Helper()
	eventually.Holds(n.t, 10*time.Second, "pod "+pod+" gets the Event "+reason.Name, func() bool {
		return slices.ContainsFunc(n.told.all(), func(e string) bool {
			return strings.Contains(e, "/"+pod+" ") && strings.Contains(e, " "+reason.Name+": ")
		})
	})
}

func TestUnadjustedContainersAreStoppedWhereConfigured(t *testing.T) {
	proc := t.TempDir()
	n := newNode(t, func(n *node) {
		n.proc = proc
		n.cfg.Guard.StopUnadjusted = true
	})
	n.pod("a-b", "main=1024")
	n.pod("good", "main=1024")
	n.pod("none", "main")
	mustCreate(t, n, "good")
	n.stopHook()
	bare := func(uid, cgroup string) func() syscall.Signal {
		pid, ended := process(t, proc, cgroup)
		c := fromSpec(sandbox(uid), "main", &rspec.Spec{Process: &rspec.Process{}})
		c.Pid = uint32(pid)
		n.keep(sandbox(uid), c)
		return ended
	}
	bad := bare("a-b", "a_b")
	harmless := bare("none", "none")
	// A process of another pod has reused the process id.
	n.pod("reused", "main=1024")
	reused := bare("reused", "other")
	pid, granted := process(t, proc, "good")
	for _, c := range n.containers {
		if c.GetPodSandboxId() == sandbox("good").GetId() {
			c.Pid = uint32(pid)
		}
	}
	n.startHook()
	eventually.Holds(t, 10*time.Second, "the container is killed", func() bool { return bad() == syscall.SIGKILL })
	if harmless() != 0 || reused() != 0 || granted() != 0 {
		t.Error("another process was ended")
	}
	n.waitTold("pod-a-b", kubeevents.VGPUStopped)
	n.waitTold("pod-reused", kubeevents.VGPUUnadjusted)
}

func TestUnadjustedContainersAreReported(t *testing.T) {
	proc := t.TempDir()
	n := newNode(t, func(n *node) { n.proc = proc })
	n.pod("u", "main=1024")
	n.stopHook()
	pid, ended := process(t, proc, "u")
	c := fromSpec(sandbox("u"), "main", &rspec.Spec{Process: &rspec.Process{}})
	c.Pid = uint32(pid)
	c.State = api.ContainerState_CONTAINER_RUNNING
	n.keep(sandbox("u"), c)
	n.startHook()
	n.waitTold("pod-u", kubeevents.VGPUUnadjusted)
	if ended() != 0 {
		t.Error("the container was stopped without a configuration")
	}
}

// TestWhatCannotBeStopped checks that stop returns an error if it cannot find the container's process,
// and no error if the process has ended.
func TestWhatCannotBeStopped(t *testing.T) {
	proc := t.TempDir()
	running, _ := process(t, proc, "u")
	if err := os.RemoveAll(filepath.Join(proc, strconv.Itoa(running))); err != nil {
		t.Fatal(err)
	}
	for pid, want := range map[int]string{
		0:       "the runtime reports no process",
		-1:      "open a pidfd",
		running: "find the pod of process",
		1 << 30: "", // no process has this id
	} {
		err := stop(adjust.Container{PodUID: "u", PID: pid}, proc)
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("process %d: got %v, want %q", pid, err, want)
		}
	}
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := open()
	for range 100 {
		_ = stop(adjust.Container{PodUID: "u", PID: running}, proc)
	}
	if after := open(); after >= before+100 {
		t.Errorf("100 attempts left %d files open", after-before)
	}
}
