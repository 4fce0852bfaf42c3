// SPDX-License-Identifier: Apache-2.0

package heartbeat

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

const testMemory = "nri-vgpu.io/vgpu-memory"

// node is a simulated node as an agent sees it.
type node struct {
	gpus       []gpu.GPU
	err        error
	pods       []*corev1.Pod
	synced     bool
	registered bool
	stuck      time.Duration
	xids       map[gpu.XID]uint64
	told       []string
	leftOut    []gpu.GPU
}

func (n *node) Refresh(context.Context) ([]gpu.GPU, error) { return n.gpus, n.err }
func (n *node) GPUs() []gpu.GPU                            { return n.gpus }
func (n *node) LeftOut() []gpu.GPU                         { return n.leftOut }
func (n *node) XIDs() map[gpu.XID]uint64                   { return n.xids }
func (n *node) List() []*corev1.Pod                        { return n.pods }
func (n *node) HasSynced() bool                            { return n.synced }
func (n *node) Registered() bool                           { return n.registered }
func (n *node) Unadjusted() int                            { return 0 }
func (n *node) Stuck() time.Duration                       { return n.stuck }

func (n *node) OnNode(reason events.Reason, format string, args ...any) {
	n.told = append(n.told, reason.Name+": "+fmt.Sprintf(format, args...))
}

func newAgent(t *testing.T, n *node) *Heartbeat {
	t.Helper()
	cfg := config.Default()
	cfg.Paths.RunDir = t.TempDir()
	return New(Options{
		Config: cfg, Inventory: n, Ledger: placement.New(n.gpus, cfg), Pods: n, Plugin: n, Events: n,
		Changed: func([]gpu.GPU) error { return nil }, Log: slog.New(slog.DiscardHandler),
	})
}

func oneGPU() *node {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{testMemory: resource.MustParse("512")}},
	}}}}
	return &node{
		gpus:   []gpu.GPU{{UUID: "GPU-1", Name: "Test GPU", MemoryBytes: 1 << 30, Healthy: true}},
		pods:   []*corev1.Pod{pod},
		synced: true, registered: true,
	}
}

func TestReport(t *testing.T) {
	n := oneGPU()
	a := newAgent(t, n)
	a.round(t.Context())
	path := filepath.Join(a.Config.Paths.RunDir, nodereport.FileName)
	report, err := nodereport.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if !report.PluginRegistered || len(report.GPUs) != 1 || !report.GPUs[0].Healthy || report.Sums.Used[testMemory] != 512 || report.Sums.Free[testMemory] != 512 {
		t.Errorf("got %+v", report)
	}

	n.gpus[0].Healthy, n.err, n.registered = false, errors.New("driver trouble"), false
	a.round(t.Context())
	report, err = nodereport.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if report.PluginRegistered || report.GPUs[0].Healthy {
		t.Errorf("got %+v", report)
	}
	if free := a.Ledger.Free(); len(free) != 1 || free[0].Healthy {
		t.Errorf("the ledger has the old GPUs: %+v", free)
	}
}

// TestARestartWithdrawsNothing checks that the previous agent's report stays until this agent is
// registered or registerGrace has passed.
func TestARestartWithdrawsNothing(t *testing.T) {
	n := oneGPU()
	before := newAgent(t, n)
	before.round(t.Context())
	path := filepath.Join(before.Config.Paths.RunDir, nodereport.FileName)
	registered := func() bool {
		t.Helper()
		report, err := nodereport.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		return report.PluginRegistered
	}
	n.registered = false
	a := newAgent(t, n)
	a.Config.Paths.RunDir = before.Config.Paths.RunDir
	a.round(t.Context())
	if !registered() {
		t.Error("a new agent withdraws the report of the previous agent")
	}
	a.begun = a.begun.Add(-2 * registerGrace)
	a.round(t.Context())
	if registered() {
		t.Error("an agent that does not get registered does not report it")
	}
}

// TestAnEndWithdrawsNothing ends the agent at each point of its last round and its last recount. The
// plugin leaves the runtime only after the context has ended.
func TestAnEndWithdrawsNothing(t *testing.T) {
	for name, last := range map[string]func(*Heartbeat, context.Context){
		"round":   (*Heartbeat).round,
		"recount": func(h *Heartbeat, ctx context.Context) { h.recount(ctx, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			n := oneGPU()
			a := newAgent(t, n)
			a.round(t.Context())
			ctx, end := context.WithCancel(t.Context())
			a.Pods = ending{n, func() { end(); n.registered = false }}
			more := n.pods[0].DeepCopy()
			more.UID = "more"
			n.pods = append(n.pods, more) // urgent
			last(a, ctx)
			report, err := nodereport.Read(filepath.Join(a.Config.Paths.RunDir, nodereport.FileName))
			if err != nil {
				t.Fatal(err)
			}
			if !report.PluginRegistered {
				t.Error("an agent that ends withdraws the node's capacity")
			}
		})
	}
}

// ending ends the agent when it lists the node's pods.
type ending struct {
	*node
	end func()
}

func (e ending) List() []*corev1.Pod {
	e.end()
	return e.node.List()
}

func TestChangesOfHealthAreReported(t *testing.T) {
	n := oneGPU()
	a := newAgent(t, n)
	a.round(t.Context())
	for _, reason := range []string{"lost", "lost", "reset", "", ""} {
		n.gpus[0].Healthy, n.gpus[0].Reason = reason == "", reason
		a.round(t.Context())
	}
	want := []string{
		"GPUUnhealthy: GPU 0 (GPU-1) is unhealthy and gets no new containers: lost",
		"GPUUnhealthy: GPU 0 (GPU-1) is unhealthy and gets no new containers: reset",
		"GPURecovered: GPU 0 (GPU-1) is healthy and accepts containers again",
	}
	if diff := cmp.Diff(want, n.told); diff != "" {
		t.Error(diff)
	}
}

// TestAGPUWithoutMIGDevicesIsLogged checks that the log has one line for each time that a GPU loses
// its MIG devices. The report lists the GPU.
func TestAGPUWithoutMIGDevicesIsLogged(t *testing.T) {
	n := oneGPU()
	a := newAgent(t, n)
	var log bytes.Buffer
	a.Log = slog.New(slog.NewTextHandler(&log, nil))
	excluded := gpu.GPU{UUID: "GPU-2"}
	for _, undivided := range []bool{true, true, false, true} {
		n.leftOut = []gpu.GPU{excluded, {UUID: "GPU-3", Undivided: undivided, Reason: "MIG mode is on"}}
		a.round(t.Context())
	}
	if lines := strings.Count(log.String(), "gpu=GPU-3"); lines != 2 || strings.Contains(log.String(), "GPU-2") || len(n.told) > 0 {
		t.Errorf("the log has %d lines, and the node the Events %v:\n%s", lines, n.told, log.String())
	}
	report, err := nodereport.Read(filepath.Join(a.Config.Paths.RunDir, nodereport.FileName))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(n.leftOut, report.LeftOut); diff != "" {
		t.Error(diff)
	}
}

func TestMetricsOfMIGDevices(t *testing.T) {
	n := oneGPU()
	n.gpus = append(n.gpus, gpu.GPU{UUID: "MIG-1", Index: 1, Name: "H100 MIG 1g.10gb", MemoryBytes: 1 << 30, Healthy: true, MIG: gpu.MIG{Parent: "GPU-2", Index: 3, Instance: 9}})
	const want = `
# HELP nri_vgpu_gpu_containers Containers with a part of the GPU.
# TYPE nri_vgpu_gpu_containers gauge
nri_vgpu_gpu_containers{index="0",name="Test GPU",uuid="GPU-1"} 0
nri_vgpu_gpu_containers{index="1:3",name="H100 MIG 1g.10gb",uuid="MIG-1"} 0
# HELP nri_vgpu_gpu_mig_info Always 1 for each MIG device; labels state its physical GPU, its profile and the ids of its instances.
# TYPE nri_vgpu_gpu_mig_info gauge
nri_vgpu_gpu_mig_info{compute_instance="0",gpu_instance="9",parent="GPU-2",profile="1g.10gb",uuid="MIG-1"} 1
`
	if err := testutil.CollectAndCompare(newAgent(t, n), strings.NewReader(want), "nri_vgpu_gpu_mig_info", "nri_vgpu_gpu_containers"); err != nil {
		t.Error(err)
	}
}

func TestRunBeatsAndCanBePoked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := oneGPU()
		a := newAgent(t, n)
		var rounds atomic.Int32
		a.Changed = func([]gpu.GPU) error { rounds.Add(1); return nil }
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { a.Run(ctx); close(done) }()
		synctest.Wait()
		if rounds := rounds.Load(); rounds != 1 {
			t.Errorf("%d rounds at the start", rounds)
		}
		a.Poke()
		a.Poke()
		synctest.Wait()
		if rounds := rounds.Load(); rounds < 2 || rounds > 3 {
			t.Errorf("%d rounds after a poke", rounds)
		}
		before := rounds.Load()
		time.Sleep(3*Interval + time.Second)
		synctest.Wait()
		if rounds := rounds.Load(); rounds != before+3 {
			t.Errorf("%d rounds in three intervals", rounds-before)
		}
		cancel()
		<-done
	})
}

// TestUseByPodsIsReportedAtOnce checks that the heartbeat reports an added pod at once, and a
// deleted pod at the next round. Without changes, the heartbeat writes nothing between rounds.
func TestUseByPodsIsReportedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := oneGPU()
		pod := n.pods[0]
		n.pods = nil
		a := newAgent(t, n)
		path := filepath.Join(a.Config.Paths.RunDir, nodereport.FileName)
		free := func() int64 {
			t.Helper()
			report, err := nodereport.Read(path)
			if err != nil {
				t.Fatal(err)
			}
			return report.Sums.Free[testMemory]
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { a.Run(ctx); close(done) }()
		synctest.Wait()
		for _, step := range []struct {
			pods  []*corev1.Pod
			after time.Duration
			want  int64
		}{
			{nil, 0, 1024}, {[]*corev1.Pod{pod}, 2 * nodereport.Pause, 512}, {nil, 2 * nodereport.Pause, 512}, {nil, Interval, 1024},
		} {
			n.pods = step.pods
			a.PodsChanged()
			a.PodsChanged()
			time.Sleep(step.after)
			synctest.Wait()
			if got := free(); got != step.want {
				t.Errorf("with %d pods %v later %d MiB are free, want %d", len(step.pods), step.after, got, step.want)
			}
		}
		cancel()
		<-done
	})
}

func TestProbes(t *testing.T) {
	tests := []struct {
		name     string
		change   func(*node, *Heartbeat)
		healthy  bool
		ready    bool
		phrase   string
		readyTxt string
	}{
		{"well", func(*node, *Heartbeat) {}, true, true, "ok", "ok"},
		{"not registered", func(n *node, _ *Heartbeat) { n.registered = false }, true, false, "ok", "not registered"},
		{"pods unknown", func(n *node, _ *Heartbeat) { n.synced = false }, true, false, "ok", "pods are not known"},
		{"a handler hangs", func(n *node, _ *Heartbeat) { n.stuck = time.Minute }, false, true, "handler", "ok"},
		{"no heartbeat", func(_ *node, a *Heartbeat) {
			earlier := time.Now().Add(-time.Hour)
			a.beat.Store(&earlier)
		}, false, true, "examined", "ok"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := oneGPU()
			a := newAgent(t, n)
			a.round(t.Context())
			tt.change(n, a)
			probe(t, a.Healthz, tt.healthy, tt.phrase)
			probe(t, a.Readyz, tt.ready, tt.readyTxt)
		})
	}
}

// TestTheWallClockEndsNoAgent checks that the age of the last round is monotonic. Otherwise, a jump of
// the wall clock by minutes would count as a round that hangs.
func TestTheWallClockEndsNoAgent(t *testing.T) {
	a := newAgent(t, oneGPU())
	a.round(t.Context())
	if beat := a.beat.Load().String(); !strings.Contains(beat, " m=") {
		t.Errorf("the last round ended at %s, by the wall clock alone", beat)
	}
}

func probe(t *testing.T, handler http.HandlerFunc, ok bool, phrase string) {
	t.Helper()
	w := httptest.NewRecorder()
	handler(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if (w.Code == http.StatusOK) != ok || !strings.Contains(w.Body.String(), phrase) {
		t.Errorf("got %d, %q", w.Code, w.Body)
	}
}

func TestMetrics(t *testing.T) {
	n := oneGPU()
	a := newAgent(t, n)
	err := a.Ledger.Restore(placement.Allocation{
		PodUID: "u", Namespace: "ns", Pod: "p", Container: "c", Kind: "app",
		Devices: []placement.Device{{UUID: "GPU-1", MemoryBytes: 1 << 29, ComputePPM: 250_000, Slots: 1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	n.gpus[0].Foreign, n.leftOut = true, []gpu.GPU{{UUID: "GPU-2"}}
	n.pods[0].Spec.Containers = append(n.pods[0].Spec.Containers, corev1.Container{
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("2")}},
	}, corev1.Container{
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/mig-1g.5gb": resource.MustParse("1")}},
	})
	a.round(t.Context())
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(a); err != nil {
		t.Fatal(err)
	}
	want := `
# HELP nri_vgpu_foreign_containers Containers of the node's pods that request a resource of another device plugin; resource is the matching element of node.foreign_resources.
# TYPE nri_vgpu_foreign_containers gauge
nri_vgpu_foreign_containers{resource="nvidia.com/gpu"} 1
nri_vgpu_foreign_containers{resource="nvidia.com/gpu.shared"} 0
nri_vgpu_foreign_containers{resource="nvidia.com/mig-*"} 1
# HELP nri_vgpu_gpu_offered_twice 1 if another device plugin offers the GPU, too: the GPU then accepts no new containers.
# TYPE nri_vgpu_gpu_offered_twice gauge
nri_vgpu_gpu_offered_twice{index="0",name="Test GPU",uuid="GPU-1"} 1
# HELP nri_vgpu_gpus_left_out GPUs that the node does not offer: node.gpus leaves them out, or they are in MIG mode without MIG devices.
# TYPE nri_vgpu_gpus_left_out gauge
nri_vgpu_gpus_left_out 1
# HELP nri_vgpu_container_compute_limit_ratio Compute limit of the container as a part of the GPU's time, 0 to 1; 1 without a limit.
# TYPE nri_vgpu_container_compute_limit_ratio gauge
nri_vgpu_container_compute_limit_ratio{container="c",namespace="ns",pod="p",uuid="GPU-1"} 0.25
# HELP nri_vgpu_container_memory_limit_bytes GPU memory limit of the container, in bytes.
# TYPE nri_vgpu_container_memory_limit_bytes gauge
nri_vgpu_container_memory_limit_bytes{container="c",namespace="ns",pod="p",uuid="GPU-1"} 5.36870912e+08
# HELP nri_vgpu_gpu_free_memory_bytes GPU memory that is not allocated.
# TYPE nri_vgpu_gpu_free_memory_bytes gauge
nri_vgpu_gpu_free_memory_bytes{index="0",name="Test GPU",uuid="GPU-1"} 5.36870912e+08
# HELP nri_vgpu_registered 1 if the agent is registered with the container runtime.
# TYPE nri_vgpu_registered gauge
nri_vgpu_registered 1
`
	names := []string{"nri_vgpu_container_compute_limit_ratio", "nri_vgpu_container_memory_limit_bytes", "nri_vgpu_gpu_free_memory_bytes", "nri_vgpu_registered",
		"nri_vgpu_foreign_containers", "nri_vgpu_gpu_offered_twice", "nri_vgpu_gpus_left_out"}
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) != 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

func TestAGuardThatIsNotLoadedIsReported(t *testing.T) {
	n := oneGPU()
	a := newAgent(t, n)
	a.reportGuard()
	if len(n.told) != 1 || !strings.HasPrefix(n.told[0], "VGPUGuardNotLoaded: ") || !strings.Contains(n.told[0], "systemctl restart containerd") {
		t.Errorf("reported were %q", n.told)
	}
	a.Config.Guard.PluginDir = "" // the configuration wants no guard
	a.reportGuard()
	if len(n.told) != 1 {
		t.Errorf("reported were %q", n.told)
	}
}
