// SPDX-License-Identifier: Apache-2.0

package detect

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

const (
	gpuA   = "GPU-11111111-2222-3333-4444-555555555555"
	podUID = "0fa3c2d1-1111-2222-3333-444455556666"
)

var containerID = strings.Repeat("0123abcd", 8)

// house is a simulated node with real processes, real pages, and cgroups that the test chooses.
type house struct {
	*testing.T
	proc, dir string
	processes map[string][]gpu.Process
	err       error
	// ask, if set, replaces the list of processes.
	ask          func(context.Context) (map[string][]gpu.Process, error)
	holders      map[string]placement.Allocation
	carried      map[string]ourfiles.Carried
	synchronized bool
	unlimited    string // a container's id
	pods         map[string]*corev1.Pod
	registered   bool
	told         []string
	detector     *Detector
}

func (h *house) Processes(ctx context.Context) (map[string][]gpu.Process, error) {
	if h.ask != nil {
		return h.ask(ctx)
	}
	return h.processes, h.err
}
func (h *house) Holders() map[string]placement.Allocation { return h.holders }
func (h *house) Carried() map[string]ourfiles.Carried     { return h.carried }
func (h *house) Synchronized() bool                       { return h.synchronized }
func (h *house) Unlimited(id string) bool                 { return id == h.unlimited }
func (h *house) HasSynced() bool                          { return true }

func (h *house) Cached(ref pods.Ref) (*corev1.Pod, bool) {
	pod, ok := h.pods[ref.UID]
	return pod, ok
}

func (h *house) OnPod(pod events.Pod, reason events.Reason, format string, args ...any) {
	h.told = append(h.told, pod.Name+" "+reason.Name+" "+fmt.Sprintf(format, args...))
}

func (h *house) OnNode(reason events.Reason, format string, args ...any) {
	h.told = append(h.told, "node "+reason.Name+" "+fmt.Sprintf(format, args...))
}

// newHouse returns a node with one container of ours, with 1000 MiB of one GPU.
func newHouse(t *testing.T) *house {
	t.Helper()
	h := &house{
		T: t, proc: t.TempDir(), dir: t.TempDir(), synchronized: true,
		processes: map[string][]gpu.Process{gpuA: nil},
		pods:      map[string]*corev1.Pod{podUID: {ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}},
	}
	h.holders = map[string]placement.Allocation{containerID: {
		PodUID: podUID, Namespace: "ns", Pod: "p", Container: "main",
		Devices: []placement.Device{{UUID: gpuA, MemoryBytes: 1000 * mib}},
	}}
	device := limits.Device{UUID: gpuA, MemoryBytes: 1000 * mib, ComputePPM: limits.NoComputeLimit}
	if err := limits.Create(h.dir, []limits.Device{device}); err != nil {
		t.Fatal(err)
	}
	h.restart(config.Default().Detection)
	return h
}

// restart replaces the detector by a new agent's detector.
func (h *house) restart(cfg config.Detection) {
	h.detector = New(Options{
		Config: cfg, Exempt: []string{"exempt"}, GPUs: h, Containers: h, Pods: h, Events: h,
		Registered: func(registry.Process) bool { return h.registered },
		Dir:        func(string, string) (string, error) { return h.dir, nil },
		Proc:       registry.Proc(h.proc), Log: slog.New(slog.DiscardHandler),
	})
	h.detector.pause = time.Millisecond
}

// process starts a process in a cgroup, with memory of the GPU.
func (h *house) process(cgroup string, bytes uint64) *exec.Cmd {
	h.Helper()
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
	h.place(child.Process.Pid, cgroup)
	h.processes[gpuA] = append(h.processes[gpuA], gpu.Process{PID: child.Process.Pid, Bytes: bytes, APIs: gpu.Compute})
	return child
}

// place puts a process into a cgroup.
func (h *house) place(pid int, cgroup string) {
	h.Helper()
	h.put(pid, "cgroup", "0::"+cgroup+"\n")
	for _, name := range []string{"stat", "status"} {
		content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), name))
		if err != nil {
			h.Fatal(err)
		}
		h.put(pid, name, string(content))
	}
}

func (h *house) put(pid int, name, content string) {
	h.Helper()
	dir := filepath.Join(h.proc, strconv.Itoa(pid))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		h.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
		h.Fatal(err)
	}
}

const ours = "/kubepods/pod" + podUID + "/"

func (h *house) round() { h.Helper(); h.detector.round(h.Context()) }

// wantTold checks that each Event since the last call begins with one of the wanted texts, and that
// no wanted text is missing.
func (h *house) wantTold(want ...string) {
	h.Helper()
	slices.Sort(h.told)
	slices.Sort(want)
	if !slices.EqualFunc(h.told, want, strings.HasPrefix) {
		h.Errorf("reported were %q, want %q", h.told, want)
	}
	h.told = nil
}

func (h *house) wantMetric(want float64, c prometheus.Collector) {
	h.Helper()
	if got := testutil.ToFloat64(c); got != want {
		h.Errorf("the metric is %v, want %v", got, want)
	}
}

// ended reports whether a process has ended, or ends within a moment.
func (h *house) ended(child *exec.Cmd) bool {
	h.Helper()
	_, handle, err := registry.HostProc.Pin(child.Process.Pid)
	if err != nil {
		return true
	}
	defer handle.Close()
	return eventually.Wait(200*time.Millisecond, "the process has ended", handle.Ended) == nil
}

func TestWhoShouldNotBeThereIsReportedOnce(t *testing.T) {
	h := newHouse(t)
	h.process(ours+containerID, mib)
	h.process("/kubepods/pod"+podUID+"/"+strings.Repeat("ab", 32), mib)
	h.process("/kubepods/pod9fa3c2d1-1111-2222-3333-444455556666/"+strings.Repeat("cd", 32), mib)
	h.process("/system.slice", mib)
	h.round()
	h.wantTold("p VGPUBypassed", "p VGPUBypassed", "node VGPUBypassed", "node VGPUBypassed")
	h.wantMetric(1, h.detector.Metrics.unaccounted.WithLabelValues(gpuA, "bypass"))
	h.wantMetric(2, h.detector.Metrics.unaccounted.WithLabelValues(gpuA, "pod"))
	h.wantMetric(1, h.detector.Metrics.unaccounted.WithLabelValues(gpuA, "host"))
	h.round()
	h.wantTold()

	h.processes[gpuA] = nil
	h.round()
	h.wantMetric(0, h.detector.Metrics.unaccounted.WithLabelValues(gpuA, "host"))
	h.wantMetric(1, h.detector.Metrics.found.WithLabelValues("host"))
}

// TestWhatAsksIsFoundInExemptNamespaces checks that in an exempt namespace only containers without
// a GPU request may use a GPU.
func TestWhatAsksIsFoundInExemptNamespaces(t *testing.T) {
	h := newHouse(t)
	const exporter, asker = "9fa3c2d1-1111-2222-3333-444455556666", "8fa3c2d1-1111-2222-3333-444455556666"
	for uid, name := range map[string]string{podUID: "bypasses", exporter: "exports", asker: "asks"} {
		h.pods[uid] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "exempt", Name: name}}
	}
	h.unlimited = strings.Repeat("ef", 32)
	h.process(ours+containerID, mib)
	h.process("/kubepods/pod"+exporter+"/"+strings.Repeat("cd", 32), mib)
	h.process("/kubepods/pod"+asker+"/"+h.unlimited, mib)
	h.round()
	h.wantMetric(1, h.detector.Metrics.found.WithLabelValues("bypass"))
	h.wantMetric(1, h.detector.Metrics.found.WithLabelValues("pod"))
	for _, name := range []string{"bypasses", "asks"} {
		if !slices.ContainsFunc(h.told, func(line string) bool { return strings.HasPrefix(line, name+" ") }) {
			t.Errorf("%s was not reported: %q", name, h.told)
		}
	}
}

// TestForeignGPUsAreLeftToOthers checks that only our containers have no permission to use a GPU of
// other programs.
func TestForeignGPUsAreLeftToOthers(t *testing.T) {
	h := newHouse(t)
	h.detector.Foreign = func(uuid string) bool { return uuid == gpuA }
	h.process(ours+containerID, mib)
	h.process("/kubepods/pod9fa3c2d1-1111-2222-3333-444455556666/"+strings.Repeat("cd", 32), mib)
	h.process("/system.slice", mib)
	h.round()
	h.wantTold("p VGPUBypassed")
	h.wantMetric(1, h.detector.Metrics.found.WithLabelValues("bypass"))
	h.wantMetric(0, h.detector.Metrics.found.WithLabelValues("pod"))
	h.wantMetric(0, h.detector.Metrics.found.WithLabelValues("host"))
}

// TestARoundReportsAFewProcesses checks that a round reports at most maxReported processes, and that
// later rounds report the rest. A tenant can start many processes.
func TestARoundReportsAFewProcesses(t *testing.T) {
	h := newHouse(t)
	for range maxReported + 2 {
		h.process("/kubepods/pod"+podUID+"/"+strings.Repeat("ab", 32), mib)
	}
	h.round()
	h.wantTold(slices.Repeat([]string{"p VGPUBypassed"}, maxReported)...)
	h.wantMetric(maxReported+2, h.detector.Metrics.unaccounted.WithLabelValues(gpuA, "pod"))
	h.round()
	h.wantTold("p VGPUBypassed", "p VGPUBypassed")
}

func TestWhoMayBeThereIsLeftAlone(t *testing.T) {
	h := newHouse(t)
	h.restart(config.Detection{Action: config.DetectStop, HostAction: config.DetectIgnore})
	h.registered = true
	h.pods["9fa3c2d1-1111-2222-3333-444455556666"] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "exempt", Name: "dcgm"}}
	h.process(ours+containerID, mib)
	h.process("/kubepods/pod9fa3c2d1-1111-2222-3333-444455556666/"+strings.Repeat("cd", 32), mib)
	h.process("/system.slice", mib)
	// The process ended before the check.
	h.processes[gpuA] = append(h.processes[gpuA], gpu.Process{PID: 1 << 22, Bytes: mib})
	h.round()
	h.wantTold()

	// No container is known before the runtime has listed its containers.
	h.registered, h.synchronized = false, false
	h.round()
	h.wantTold()
	h.synchronized, h.err = true, errors.New("the driver does not answer")
	h.round()
	h.wantTold()
}

func TestStop(t *testing.T) {
	h := newHouse(t)
	h.restart(config.Detection{Action: config.DetectStop, HostAction: config.DetectReport})
	bypass := h.process(ours+containerID, mib)
	unknown := h.process("/kubepods/pod9fa3c2d1-1111-2222-3333-444455556666/"+strings.Repeat("cd", 32), mib)
	host := h.process("/system.slice", mib)
	h.round()
	if !h.ended(bypass) {
		t.Error("a process that bypasses the limits was not stopped")
	}
	if h.ended(unknown) || h.ended(host) {
		t.Error("one was stopped that the configuration does not name")
	}
	h.wantTold("p VGPUBypassed", "p VGPUStopped", "node VGPUBypassed", "node VGPUBypassed")

	h.restart(config.Detection{Action: config.DetectReport, HostAction: config.DetectStop})
	h.processes[gpuA] = h.processes[gpuA][1:]
	h.round()
	if h.ended(unknown) || !h.ended(host) {
		t.Error("want the one of the host stopped alone")
	}
}

// TestStopLooksAgain checks that the detector checks a process again before the kill. Between the
// check and the kill, the process may move, or another process may reuse its pid.
func TestStopLooksAgain(t *testing.T) {
	h := newHouse(t)
	h.restart(config.Detection{Action: config.DetectStop, HostAction: config.DetectReport})
	child := h.process(ours+containerID, mib)
	p, ok := h.detector.look(t.Context())
	if !ok {
		t.Fatal("nothing was seen")
	}
	findings := h.detector.judge(p)
	if len(findings) != 1 {
		t.Fatalf("found %+v", findings)
	}
	moved := findings[0]
	h.put(child.Process.Pid, "cgroup", "0::"+ours+strings.Repeat("ab", 32)+"\n")
	h.detector.stop(moved)
	h.put(child.Process.Pid, "cgroup", "0::"+ours+containerID+"\n")
	another := findings[0]
	another.Started++
	h.detector.stop(another)
	if h.ended(child) {
		t.Error("a process other than the found process was killed")
	}
	h.detector.stop(findings[0])
	if !h.ended(child) {
		t.Error("the found process was not killed")
	}
}

func (h *house) observed() uint64 {
	h.Helper()
	bytes, err := limits.Observed(filepath.Join(h.dir, limits.LimitsFile))
	if err != nil {
		h.Fatal(err)
	}
	return bytes[0]
}

func TestPagesHaveTheObservedMemory(t *testing.T) {
	h := newHouse(t)
	h.registered = true
	h.process(ours+containerID, 400*mib)
	h.round()
	if got := h.observed(); got != 400*mib {
		t.Errorf("observed are %d bytes", got)
	}
	h.wantTold("p VGPUUsageForged")
	h.wantMetric(1, h.detector.Metrics.mismatches)
	// Each check writes the observation again, but only one Event reports it.
	h.processes[gpuA][0].Bytes = 500 * mib
	h.round()
	if got := h.observed(); got != 500*mib {
		t.Errorf("observed are %d bytes", got)
	}
	h.wantTold()

	// If the driver does not answer for the GPU, the observation remains in force.
	running := h.processes[gpuA]
	h.err = errors.New("the driver does not answer")
	h.round()
	if got := h.observed(); got != 500*mib {
		t.Errorf("without an answer observed are %d bytes", got)
	}

	// The next agent clears an observation that no longer holds.
	h.err, h.processes[gpuA] = nil, nil
	h.restart(config.Default().Detection)
	h.round()
	if got := h.observed(); got != 0 {
		t.Errorf("without processes, %d bytes are observed", got)
	}
	h.processes[gpuA] = running
	h.round()
	h.wantTold("p VGPUUsageForged")
}

// TestABrokenUsagePageClaimsNothing checks that a broken usage page does not reduce the observed
// memory. The tenant may corrupt the container's usage page.
func TestABrokenUsagePageClaimsNothing(t *testing.T) {
	h := newHouse(t)
	h.registered = true
	h.process(ours+containerID, 400*mib)
	page := filepath.Join(h.dir, limits.UsageFile)
	head := make([]byte, 4096)
	binary.LittleEndian.PutUint64(head, 0x6b6f6f6c)
	for _, damage := range []func() error{
		func() error { return os.WriteFile(page, head, 0o666) },
		func() error { return os.Truncate(page, 0) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		h.round()
		if got := h.observed(); got != 400*mib {
			t.Errorf("observed are %d bytes", got)
		}
	}
}

func TestMetrics(t *testing.T) {
	h := newHouse(t)
	h.registered = true
	h.process(ours+containerID, 400*mib)
	h.process("/system.slice", mib)
	h.round()
	metrics := prometheus.NewPedanticRegistry()
	if err := metrics.Register(h.detector.Metrics); err != nil {
		t.Fatal(err)
	}
	want := `
# HELP nri_vgpu_container_observed_memory_bytes GPU memory that the driver reports for the container, where its usage page reports less.
# TYPE nri_vgpu_container_observed_memory_bytes gauge
nri_vgpu_container_observed_memory_bytes{container="main",namespace="ns",pod="p",uuid="` + gpuA + `"} 4.194304e+08
# HELP nri_vgpu_unaccounted_processes Unaccounted processes on the GPU, by kind: bypass, outside the limits of the process's container; pod, in a container without a part of a GPU; host, outside of pods. A process is unaccounted if no container with a part of the GPU accounts for it.
# TYPE nri_vgpu_unaccounted_processes gauge
nri_vgpu_unaccounted_processes{kind="host",uuid="` + gpuA + `"} 1
`
	if err := testutil.GatherAndCompare(metrics, strings.NewReader(want), "nri_vgpu_container_observed_memory_bytes", "nri_vgpu_unaccounted_processes"); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(metrics); err != nil || len(problems) != 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}
