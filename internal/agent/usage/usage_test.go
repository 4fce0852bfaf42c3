// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/internal/registry"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

const (
	gib      = 1 << 30
	first    = "GPU-00000000-0000-0000-0000-000000000001"
	second   = "MIG-00000000-0000-0000-0000-000000000002"
	ownPod   = "0fa3c2d1-1111-2222-3333-444455556666"
	otherPod = "9fa3c2d1-1111-2222-3333-444455556666"
	metagpu  = "cnvrg.io/metagpu"
)

var (
	main    = strings.Repeat("a1", 32) // runtime ids
	side    = strings.Repeat("b2", 32)
	foreign = strings.Repeat("c3", 32)
)

// node simulates the environment of a Collector.
type node struct {
	*testing.T
	proc, dirs string
	mu         sync.Mutex
	active     map[string][]gpu.Activity
	err        error
	asked      int
	hang       chan struct{} // if set, the driver answers when the channel is closed
	holders    map[string]placement.Allocation
	pods       map[string]*corev1.Pod
	rooms      []placement.Room
	leftOut    []gpu.GPU
}

func (n *node) LeftOut() []gpu.GPU { return n.leftOut }

func (n *node) GPUs() []gpu.GPU {
	return []gpu.GPU{
		{UUID: first, Index: 0, Name: "G", MemoryBytes: 16 * gib, Healthy: true},
		{UUID: second, Index: 1, Name: "G MIG 1g.16gb", MIG: gpu.MIG{Parent: "GPU-p", Index: 3}, MemoryBytes: 16 * gib, Reason: "XID 79"},
	}
}

func (n *node) Activity(ctx context.Context, _ time.Duration) (map[string][]gpu.Activity, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked++
	if n.hang != nil {
		select {
		case <-n.hang:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return n.active, n.err
}

func (n *node) Allocations() []placement.Allocation {
	return slices.Collect(maps.Values(n.holders))
}

func (n *node) Holders() map[string]placement.Allocation { return n.holders }
func (n *node) Free() []placement.Room                   { return n.rooms }
func (n *node) Cached(ref pods.Ref) (*corev1.Pod, bool)  { pod, ok := n.pods[ref.UID]; return pod, ok }
func (n *node) Dir(podUID, container string) (string, error) {
	return filepath.Join(n.dirs, podUID, container), nil
}

// process starts a process in a cgroup, inside or outside of containers. The process uses a GPU.
func (n *node) process(cgroup, uuid string, bytes uint64, percent *float64) (pid int) {
	n.Helper()
	sleep := exec.Command("sleep", "60")
	if err := sleep.Start(); err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { _ = sleep.Process.Kill(); _ = sleep.Wait() })
	pid = sleep.Process.Pid
	dir := filepath.Join(n.proc, strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		n.Fatal(err)
	}
	for name, content := range map[string]string{
		"stat": string(stat), "status": "Name:\tsleep\nUid:\t0\t0\t0\t0\nNSpid:\t" + strconv.Itoa(pid) + "\t7\n",
		"cgroup": "0::" + cgroup + "\n", "cmdline": "python\x00train\x1b[2J.py\x00",
	} {
		n.write(filepath.Join(dir, name), content)
	}
	n.active[uuid] = append(n.active[uuid], gpu.Activity{Process: gpu.Process{PID: pid, Bytes: bytes}, Utilisation: percent})
	return pid
}

func (n *node) write(path, content string) {
	n.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		n.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		n.Fatal(err)
	}
}

// contain adds a container with a limits page.
func (n *node) contain(id, uid, pod, name string, devices ...limits.Device) {
	n.Helper()
	a := placement.Allocation{PodUID: uid, Namespace: "ns", Pod: pod, Container: name, Dialect: request.DialectMetaGPU}
	for _, d := range devices {
		a.Devices = append(a.Devices, placement.Device{UUID: d.UUID, MemoryBytes: 4 * gib, ComputePPM: 250_000})
	}
	n.holders[id] = a
	dir := filepath.Join(n.dirs, uid, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		n.Fatal(err)
	}
	if err := limits.Create(dir, devices); err != nil {
		n.Fatal(err)
	}
	spec := n.pods[uid]
	if spec == nil {
		spec = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: pod}}
		n.pods[uid] = spec
	}
	spec.Spec.Containers = append(spec.Spec.Containers, corev1.Container{Name: name, Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{metagpu: *resource.NewQuantity(25, resource.DecimalSI), "cpu": resource.MustParse("1")},
	}})
}

func newNode(t *testing.T) (*node, *Collector) {
	t.Helper()
	n := &node{
		T: t, proc: t.TempDir(), dirs: t.TempDir(), active: map[string][]gpu.Activity{first: nil, second: nil},
		holders: map[string]placement.Allocation{}, pods: map[string]*corev1.Pod{},
	}
	return n, New(Options{
		Node: "n1", Config: config.Default(), GPUs: n, Containers: n, Ledger: n, Pods: n, Dir: n.Dir, Proc: registry.Proc(n.proc),
	})
}

func cgroup(pod, container string) string { return "/kubepods/pod" + pod + "/" + container }

func some[T any](value T) *T { return &value }

// populated returns a node with a pod of one container, a pod of two containers, and a process
// outside of pods.
func populated(t *testing.T) (n *node, c *Collector, pids map[string]int) {
	t.Helper()
	n, c = newNode(t)
	quarter := limits.Device{UUID: first, MemoryBytes: 4 * gib, ComputePPM: 250_000, MaximumPPM: 500_000}
	all := limits.Device{UUID: second, MemoryBytes: 16 * gib, ComputePPM: limits.NoComputeLimit} // more than requested
	n.contain(main, ownPod, "own", "main", quarter)
	n.contain(side, ownPod, "own", "side", quarter)
	n.contain(foreign, otherPod, "other", "main", quarter, all)
	pids = map[string]int{
		"main":   n.process(cgroup(ownPod, main), first, gib, some(20.01)),
		"side":   n.process(cgroup(ownPod, side), first, 0, nil),
		"other":  n.process(cgroup(otherPod, foreign), first, 2*gib, some(10.0)),
		"second": n.process(cgroup(otherPod, foreign), second, 3*gib, some(50.0)),
		"host":   n.process("/system.slice/x.service", first, gib/2, some(1.0)),
	}
	return n, c, pids
}

// entry returns the entry of a process of the populated node.
func entry(pod, container string, pid int) agentapi.Process {
	return agentapi.Process{
		Namespace: "ns", Pod: pod, Container: container, Node: "n1", UUID: first, PID: uint32(pid), Command: "python train?[2J.py",
		MemoryLimitBytes: 4 * gib, ComputeLimitPPM: 250_000, ComputeMaximumPPM: 500_000, Requests: map[string]int64{metagpu: 25},
	}
}

func TestAContainerSeesOnlyItsPod(t *testing.T) {
	_, c, _ := populated(t)
	got, err := c.Answer(t.Context(), registry.Asker{PodUID: ownPod, Container: main}, agentapi.Processes)
	if err != nil {
		t.Fatal(err)
	}
	own, beside := entry("own", "main", 7), entry("own", "side", 7)
	own.Utilisation, own.ShareUtilisation, own.MemoryUsedBytes = some(20.0), some(80.0), some(uint64(gib))
	if diff := cmp.Diff([]agentapi.Process{own, beside}, got); diff != "" {
		t.Error(diff)
	}
	got, err = c.Answer(t.Context(), registry.Asker{PodUID: "a pod without processes", Container: "x"}, agentapi.Processes)
	if err != nil || len(got.([]agentapi.Process)) != 0 {
		t.Errorf("a pod without processes gets %+v, %v", got, err)
	}
}

func TestTheNodesRootSeesAll(t *testing.T) {
	_, c, pids := populated(t)
	got, err := c.Answer(t.Context(), registry.Asker{Node: true}, agentapi.Processes)
	if err != nil {
		t.Fatal(err)
	}
	own, side := entry("own", "main", pids["main"]), entry("own", "side", pids["side"])
	own.Utilisation, own.ShareUtilisation, own.MemoryUsedBytes = some(20.0), some(80.0), some(uint64(gib))
	other, whole := entry("other", "main", pids["other"]), entry("other", "main", pids["second"])
	other.Utilisation, other.ShareUtilisation, other.MemoryUsedBytes = some(10.0), some(40.0), some(uint64(2*gib))
	whole.UUID, whole.MemoryLimitBytes, whole.ComputeLimitPPM, whole.ComputeMaximumPPM = second, 16*gib, 0, 0
	whole.Utilisation, whole.ShareUtilisation, whole.MemoryUsedBytes = some(50.0), some(50.0), some(uint64(3*gib))
	host := agentapi.Process{Node: "n1", UUID: first, PID: uint32(pids["host"]), Command: "python train?[2J.py",
		Utilisation: some(1.0), MemoryUsedBytes: some(uint64(gib / 2))}
	if other.PID > whole.PID {
		other, whole = whole, other
	}
	if diff := cmp.Diff([]agentapi.Process{host, other, whole, own, side}, got); diff != "" {
		t.Error(diff)
	}
}

func TestDevicesOfAContainer(t *testing.T) {
	n, c, _ := populated(t)
	got, err := c.Answer(t.Context(), registry.Asker{PodUID: otherPod, Container: foreign}, agentapi.Devices)
	if err != nil {
		t.Fatal(err)
	}
	share := uint64(16*gib) / 100
	want := []agentapi.Device{
		{Index: 0, UUID: first, Name: "G", MemoryBytes: 4 * gib, MemoryUsedBytes: some(uint64(2 * gib)), Utilisation: some(10.0),
			Sharing: []agentapi.Sharing{{Resource: metagpu, PerGPU: 100, ShareBytes: share, Held: 25}}},
		{Index: 1, UUID: second, Name: "G MIG 1g.16gb", Unhealthy: "XID 79", MemoryBytes: 16 * gib, MemoryUsedBytes: some(uint64(3 * gib)), Utilisation: some(50.0),
			Sharing: []agentapi.Sharing{{Resource: metagpu, PerGPU: 100, ShareBytes: share, Held: 25}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	delete(n.holders, foreign)
	c.current = nil
	if got, err := c.Answer(t.Context(), registry.Asker{PodUID: otherPod, Container: foreign}, agentapi.Devices); err == nil {
		t.Errorf("an unknown container gets %+v", got)
	}
}

func TestDevicesOfTheNode(t *testing.T) {
	n, c, _ := populated(t)
	n.rooms = []placement.Room{
		{UUID: first, MemoryBytes: 16 * gib, FreeMemoryBytes: 8 * gib, FreeComputePPM: 450_000},
		{UUID: second, MemoryBytes: 16 * gib, FreeMemoryBytes: 16 * gib, FreeComputePPM: request.Whole, Exclusive: true},
	}
	c.Config.Dialects.MetaGPU.DeviceSharing = []config.DeviceSharing{
		{ResourceName: metagpu, SharesPerGPU: 4, AutoReshare: true, UUIDs: []string{"*"}},
		{ResourceName: "a/b", SharesPerGPU: 4, UUIDs: []string{second}},
	}
	got, err := c.Answer(t.Context(), registry.Asker{Node: true}, agentapi.Devices)
	if err != nil {
		t.Fatal(err)
	}
	share := uint64(16*gib) / 100
	want := []agentapi.Device{
		// The driver reports no value for one process.
		{Index: 0, UUID: first, Name: "G", MemoryBytes: 16 * gib,
			Sharing: []agentapi.Sharing{{Resource: metagpu, PerGPU: 100, ShareBytes: share, Held: 55}}},
		{Index: 1, UUID: second, Name: "G MIG 1g.16gb", MIG: agentapi.MIG{Parent: "GPU-p", Index: 3, Profile: "1g.16gb"}, Unhealthy: "XID 79", MemoryBytes: 16 * gib, MemoryUsedBytes: some(uint64(3 * gib)), Utilisation: some(50.0),
			Sharing: []agentapi.Sharing{{Resource: metagpu, PerGPU: 100, ShareBytes: share, Held: 100}, {Resource: "a/b", PerGPU: 4, ShareBytes: 4 * gib, Held: 4}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestPing(t *testing.T) {
	_, c := newNode(t)
	got, err := c.Answer(t.Context(), registry.Asker{}, agentapi.Ping)
	if pong, ok := got.(agentapi.Pong); err != nil || !ok || pong.Node != "n1" || pong.Version == "" {
		t.Errorf("got %+v, %v", got, err)
	}
}

// TestTheDriverIsAskedOnceForAll checks that many askers share one query of the driver, and a
// hanging driver delays no asker for long.
func TestTheDriverIsAskedOnceForAll(t *testing.T) {
	n, c := newNode(t)
	n.hang = make(chan struct{})
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if _, err := c.Answer(t.Context(), registry.Asker{Node: true}, agentapi.Processes); err != nil {
				t.Error(err)
			}
		})
	}
	close(n.hang)
	all.Wait()
	if n.asked != 1 {
		t.Errorf("it was asked %d times", n.asked)
	}
	n.mu.Lock()
	n.hang = make(chan struct{})
	n.err = errors.New("no answer")
	n.mu.Unlock()
	time.Sleep(fresh)
	begin := time.Now()
	if _, err := c.Answer(t.Context(), registry.Asker{Node: true}, agentapi.Processes); err == nil || time.Since(begin) > 2*patience {
		t.Errorf("while it hangs: %v after %v", err, time.Since(begin))
	}
}

// TestAHangingProcessGoesByItsName checks that the answer lists a process by its name if the
// command line cannot be read. The process costs one attempt, and delays no asker for long.
func TestAHangingProcessGoesByItsName(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	attempts := make(chan int, 10)
	c := commands{known: map[identity]*command{}, read: func(p registry.Process) (string, error) {
		attempts <- p.PID
		if p.Name == "stuck" {
			<-hang
		}
		return "line", nil
	}}
	processes := map[int]registry.Process{1: {PID: 1, Name: "stuck"}, 2: {PID: 2, Name: "fine"}, 3: {PID: 3, Started: 1}, 4: {PID: 4, Name: "stuck"}}
	for range 3 {
		begin := time.Now()
		got := c.of(processes)
		if diff := cmp.Diff(map[int]string{1: "stuck", 2: "line", 3: "line", 4: "stuck"}, got); diff != "" {
			t.Error(diff)
		}
		if waited := time.Since(begin); waited > 20*commandPatience {
			t.Errorf("it took %v", waited)
		}
	}
	if len(attempts) != 4 {
		t.Errorf("%d attempts for 4 processes", len(attempts))
	}
	processes = map[int]registry.Process{3: {PID: 3, Started: 2}}
	if got := c.of(processes); got[3] != "line" || len(attempts) != 5 || len(c.known) != 1 {
		t.Errorf("another process with the pid: %v after %d attempts, %d are kept", got, len(attempts), len(c.known))
	}
}

// TestFewHangingProcessesAreRead checks the bound on hanging reads of processes. Each hanging
// process keeps a thread, even after its end.
func TestFewHangingProcessesAreRead(t *testing.T) {
	hang := make(chan struct{})
	var hanging atomic.Int32
	c := commands{known: map[identity]*command{}, read: func(p registry.Process) (string, error) {
		if p.Name == "stuck" {
			hanging.Add(1)
			<-hang
		}
		return "line", nil
	}}
	for generation := range 3 {
		processes := map[int]registry.Process{}
		for pid := range mostReading {
			processes[pid] = registry.Process{PID: pid, Started: uint64(generation), Name: "stuck"}
		}
		c.of(processes)
	}
	if got := hanging.Load(); got != mostReading {
		t.Errorf("%d are read", got)
	}
	fine := map[int]registry.Process{1: {PID: 1, Started: 7, Name: "fine"}}
	if got := c.of(fine); got[1] != "fine" {
		t.Errorf("while two processes hang, another process is %q", got[1])
	}
	close(hang)
	eventually.Holds(t, 10*time.Second, "its command line is read", func() bool { return c.of(fine)[1] == "line" })
}

func TestOverview(t *testing.T) {
	n, c, pids := populated(t)
	n.rooms = []placement.Room{{UUID: first, MemoryBytes: 16 * gib, FreeMemoryBytes: 4 * gib, FreeComputePPM: 250_000, FreeSlots: 7, Holders: 3}}
	ask := func(who registry.Asker) agentapi.Overview {
		t.Helper()
		got, err := c.Answer(t.Context(), who, agentapi.All)
		if err != nil {
			t.Fatal(err)
		}
		return got.(agentapi.Overview)
	}
	all := ask(registry.Asker{Node: true})
	if all.Node != "n1" || len(all.GPUs) != 2 || len(all.Processes) != len(pids) || len(all.Containers) != 3 {
		t.Fatalf("the answer is %+v", all)
	}
	if r := all.GPUs[0].Room; r == nil || *r != (agentapi.Room{MemoryBytes: 16 * gib, FreeMemoryBytes: 4 * gib, FreeComputePPM: 250_000, FreeSlots: 7, Holders: 3}) || all.GPUs[1].Room != nil {
		t.Errorf("the answer has the GPUs %+v", all.GPUs)
	}
	want := agentapi.Container{
		Namespace: "ns", Pod: "other", Container: "main", Node: "n1", Requests: map[string]int64{metagpu: 25},
		GPUs: []agentapi.Share{
			{UUID: first, MemoryLimitBytes: 4 * gib, ComputeLimitPPM: 250_000, ComputeMaximumPPM: 500_000, MemoryUsedBytes: some(uint64(2 * gib)), Utilisation: some(10.0), Processes: 1, Account: &agentapi.Account{}},
			{UUID: second, Index: 1, MIG: agentapi.MIG{Parent: "GPU-p", Index: 3, Profile: "1g.16gb"}, Unhealthy: "XID 79", MemoryLimitBytes: 16 * gib, MemoryUsedBytes: some(uint64(3 * gib)), Utilisation: some(50.0), Processes: 1, Account: &agentapi.Account{}},
		},
	}
	if diff := cmp.Diff(want, all.Containers[0]); diff != "" {
		t.Error(diff)
	}

	own := ask(registry.Asker{PodUID: ownPod, Container: main})
	if len(own.GPUs) != 1 || len(own.Containers) != 2 || len(own.Processes) != 2 || own.GPUs[0].Room != nil {
		t.Errorf("a container gets %+v", own)
	}
	for _, told := range own.Containers {
		if told.Pod != "own" {
			t.Errorf("a container gets the process %+v", told)
		}
	}
}

// TestOverviewWithoutTheDriver checks that the overview without the driver contains the
// allocations, and the reason for the missing values.
func TestOverviewWithoutTheDriver(t *testing.T) {
	n, c, _ := populated(t)
	n.err = errors.New("the driver is lost")
	got, err := c.Answer(t.Context(), registry.Asker{Node: true}, agentapi.All)
	if err != nil {
		t.Fatal(err)
	}
	o := got.(agentapi.Overview)
	if o.Driver != "the driver is lost" || len(o.Containers) != 3 || len(o.GPUs) != 2 || o.Processes == nil {
		t.Errorf("the answer is %+v", o)
	}
	if s := o.Containers[0].GPUs[0]; s.MemoryUsedBytes != nil || s.Utilisation != nil || s.MemoryLimitBytes == 0 {
		t.Errorf("the answer has the container %+v", s)
	}
}
