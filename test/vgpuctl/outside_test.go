// SPDX-License-Identifier: Apache-2.0

package vgpuctl

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
	"github.com/nri-vgpu/nri-vgpu/internal/agent/detect"
	"github.com/nri-vgpu/nri-vgpu/internal/container/ourfiles"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/internal/registry"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// outsideUID and outsideID are the UID of the pod and the id of the container to which the test
// assigns the group's processes.
const outsideUID = "0fa3c2d1-1111-2222-3333-444455556666"

var outsideID = strings.Repeat("0123abcd", 8)

// outside is the agent's view of a group as a container: the container's socket, and the users of
// the GPUs. Processes, pages and interposer are real. The test chooses the cgroup of the processes.
type outside struct {
	*machine
	oracle   *oracle.Oracle
	dir      string // the group's directory
	proc     string
	registry *registry.Registry

	mu    sync.Mutex
	told  []string
	looks int // the number of queries to the driver
}

func (o *outside) Processes(context.Context) (map[string][]gpu.Process, error) {
	o.mu.Lock()
	o.looks++
	o.mu.Unlock()
	running, err := o.oracle.Processes()
	all := map[string][]gpu.Process{}
	for _, d := range o.devices() {
		all[d.UUID] = nil
	}
	for _, p := range running {
		for _, g := range p.GPUs {
			all[g.UUID] = append(all[g.UUID], gpu.Process{PID: p.Pid, Bytes: g.Bytes})
		}
	}
	return all, err
}

func (o *outside) devices() []limits.Device {
	devices, err := limits.Read(filepath.Join(o.dir, limits.LimitsFile))
	if err != nil {
		o.Error(err)
	}
	return devices
}

func (o *outside) Holders() map[string]placement.Allocation {
	held := placement.Allocation{PodUID: outsideUID, Namespace: "ns", Pod: "p", Container: "main"}
	for _, d := range o.devices() {
		held.Devices = append(held.Devices, placement.Device{UUID: d.UUID, MemoryBytes: d.MemoryBytes})
	}
	return map[string]placement.Allocation{outsideID: held}
}

// Carried returns nil, because programs under vgpuctl run have no mounts of ours.
func (o *outside) Carried() map[string]ourfiles.Carried                    { return nil }
func (o *outside) Synchronized() bool                                      { return true }
func (o *outside) Unlimited(string) bool                                   { return false }
func (o *outside) HasSynced() bool                                         { return true }
func (o *outside) Cached(pods.Ref) (*corev1.Pod, bool)                     { return &corev1.Pod{}, true }
func (o *outside) OnNode(r events.Reason, _ string, _ ...any)              { o.tell(r) }
func (o *outside) OnPod(_ events.Pod, r events.Reason, _ string, _ ...any) { o.tell(r) }

func (o *outside) tell(reason events.Reason) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.told = append(o.told, reason.Name)
}

func (o *outside) looked() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.looks
}

func (o *outside) wasTold(reason events.Reason) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Contains(o.told, reason.Name)
}

// newOutside makes a group with a limit on memory, and watches the group.
func newOutside(t testing.TB) *outside {
	t.Helper()
	o := &outside{machine: newMachine(t), registry: registry.New(), proc: t.TempDir()}
	o.oracle = o.machine.oracle()
	o.dir = filepath.Join(o.runs, "nri-vgpu/g")
	// This process keeps the group while other processes start and end.
	o.start(o.command("run", "--group", "g", "--memory", "4Gi", "--", "sleep", "3600"))
	eventually.Holds(o, patience, "the group is there", func() bool { _, err := limits.Read(filepath.Join(o.dir, limits.LimitsFile)); return err == nil })
	log := slog.New(slog.DiscardHandler)
	server := &registry.Server{
		Path: filepath.Join(o.dir, "agent", "agent.sock"), Registry: o.registry, Proc: registry.Proc(o.proc), Log: log,
	}
	detector := detect.New(detect.Options{
		Config: config.Detection{Interval: config.Duration{Duration: time.Second}, Action: config.DetectReport, HostAction: config.DetectReport},
		GPUs:   o, Containers: o, Pods: o, Events: o, Registered: o.registry.Has,
		Dir:  func(string, string) (string, error) { return o.dir, nil },
		Proc: registry.Proc(o.proc), Log: log,
	})
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { server.Run(ctx) })
	all.Go(func() { detector.Run(ctx) })
	t.Cleanup(func() { cancel(); all.Wait() })
	eventually.Holds(o, patience, "the socket is there", func() bool { _, err := os.Stat(server.Path); return err == nil })
	return o
}

// contained returns a command that runs a program as a process of the container. The program begins
// when the agent can see the program's container.
func (o *outside) contained(program ...string) *exec.Cmd {
	o.Helper()
	cmd := exec.Command("sh", append([]string{"-c", `read go && exec "$@"`, "sh"}, program...)...)
	cmd.Env = slices.Clone(o.env)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		o.Fatal(err)
	}
	o.start(cmd)
	dir := filepath.Join(o.proc, strconv.Itoa(cmd.Process.Pid))
	if err := os.Mkdir(dir, 0o755); err != nil {
		o.Fatal(err)
	}
	for _, name := range []string{"stat", "status"} {
		if err := os.Symlink(fmt.Sprintf("/proc/%d/%s", cmd.Process.Pid, name), filepath.Join(dir, name)); err != nil {
			o.Fatal(err)
		}
	}
	cgroup := "0::/kubepods/pod" + outsideUID + "/" + outsideID + "\n"
	if err := os.WriteFile(filepath.Join(dir, "cgroup"), []byte(cgroup), 0o644); err != nil {
		o.Fatal(err)
	}
	if _, err := io.WriteString(stdin, "go\n"); err != nil {
		o.Fatal(err)
	}
	return cmd
}

// fill returns a command that fills a GPU, as a program of the group, under its limits.
func (o *outside) fill(args ...string) *exec.Cmd {
	o.Helper()
	return o.contained(append([]string{filepath.Join(o.build, "bin/vgpuctl"), "run", "--group", "g", "--", o.workload("fill")}, args...)...)
}

// TestTheAgentKnowsItsProcesses checks that a process registers at its first cuInit with its slot
// of the usage page. The kernel identifies the process. The agent drops the process when the
// process has ended.
func TestTheAgentKnowsItsProcesses(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	cmd := o.fill("--max", "1GiB", "--hold", "3600")
	eventually.Holds(o, patience, "the agent lists the process, with its slot", func() bool {
		list := o.registry.Processes(outsideID)
		if len(list) != 1 || list[0].PID != cmd.Process.Pid {
			return false
		}
		_, ok := list[0].Slot()
		return ok
	})
	before := o.looked()
	eventually.Holds(o, patience, "the agent has checked the process often enough to report it", func() bool { return o.looked() >= before+6 })
	if o.wasTold(events.VGPUBypassed) || o.wasTold(events.VGPUUsageForged) {
		t.Errorf("the agent reported a correct process: %v", o.told)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	eventually.Holds(o, patience, "the agent drops the process", func() bool { return len(o.registry.Processes(outsideID)) == 0 })
}

// TestWhoGoesAroundTheInterposerIsSeen checks that the agent finds a process of the container that
// has not loaded the library.
func TestWhoGoesAroundTheInterposerIsSeen(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	o.contained(o.workload("fill"), "--max", "64MiB", "--hold", "3600")
	eventually.Holds(o, patience, "the agent reports the process", func() bool { return o.wasTold(events.VGPUBypassed) })
}

// TestAForgedUsagePageGrantsNoMore runs a process that writes zeros over other processes' use.
// After the agent's next check the process gets no more than the limit, and all of the limit again
// once the page is correct.
func TestAForgedUsagePageGrantsNoMore(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	first := o.fill("--max", "2GiB", "--hold", "3600")
	eventually.Holds(o, patience, "the first process holds its part", func() bool { bytes, _ := o.held(o.oracle); return bytes > 2<<30 })
	forger := o.start(exec.Command(o.workload("pester"), "--way", "forge", "--dir", o.dir, "--duration", "3600"))
	observed := func() uint64 {
		bytes, err := limits.Observed(filepath.Join(o.dir, limits.LimitsFile))
		if err != nil {
			t.Fatal(err)
		}
		return slices.Max(bytes)
	}
	eventually.Holds(o, patience, "the agent observes the memory of the process", func() bool { return observed() > 2<<30 })
	held, _ := o.held(o.oracle)
	_ = o.fill("--chunk", "64MiB").Wait()
	if peak := o.peak(o.oracle); peak == 0 || held+peak > 4<<30 {
		t.Errorf("beside %d bytes a process got %d, want all within 4 GiB", held, peak)
	}
	for _, cmd := range []*exec.Cmd{forger, first} {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	eventually.Holds(o, patience, "the agent reports no forgery", func() bool { return observed() == 0 })
	o.fill("--hold", "3600")
	eventually.Holds(o, patience, "one process has all of the memory", func() bool { bytes, _ := o.held(o.oracle); return bytes == 4<<30 })
}
