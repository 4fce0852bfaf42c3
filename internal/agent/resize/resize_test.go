// SPDX-License-Identifier: Apache-2.0

package resize

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/resize"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

// world is a node with one GPU of 16 GiB, as the Resizer sees the node.
type world struct {
	t       *testing.T
	client  *fake.Clientset
	ledger  *placement.Ledger
	resizer *Resizer
	unready bool
	broken  error // of Resize
	set     []string
	told    []string
	changed int
	log     bytes.Buffer
}

// newWorld returns a node on which the pods hold their GPUs. Containers of namespace "ns" may grow up to
// 8 GiB and 60 %.
func newWorld(t *testing.T, all ...*corev1.Pod) *world {
	cfg := config.Default()
	cfg.Resize.Maximum = []config.ResizeMaximum{{Namespace: "ns", MemoryMiB: 8192, Cores: 60}}
	cfg.Node.SlotsPerGPU = 1000
	return newConfiguredWorld(t, cfg, all...)
}

// newConfiguredWorld returns a node with a configuration, on which the pods hold their GPUs.
func newConfiguredWorld(t *testing.T, cfg config.Config, all ...*corev1.Pod) *world {
	w := &world{t: t, client: fake.NewClientset()}
	w.start(cfg)
	for _, p := range all {
		if _, err := w.client.CoreV1().Pods(p.Namespace).Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		asked, err := request.Read(p, cfg)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range asked.Containers {
			if _, err := w.ledger.Place(asked, c.Name); err != nil {
				t.Fatal(err)
			}
		}
	}
	return w
}

// start starts an agent with an empty ledger.
func (w *world) start(cfg config.Config) {
	w.ledger = placement.New([]gpu.GPU{{UUID: "GPU-0", MemoryBytes: 16 << 30, Healthy: true}}, cfg)
	w.resizer = New(Options{Client: w.client, Config: cfg, Pods: w, Places: w, Ledger: w.ledger, Events: w,
		Changed: func() { w.changed++ }, Log: slog.New(slog.NewTextHandler(&w.log, nil))})
}

func (w *world) List() []*corev1.Pod {
	list, err := w.client.CoreV1().Pods("").List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	all := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		all[i] = &list.Items[i]
	}
	return all
}

func (w *world) HasSynced() bool { return !w.unready }

func (w *world) Held(uid string) []placement.Allocation { return w.ledger.Pod(uid) }

func (w *world) Resize(uid, container string, shares []request.Share) error {
	w.set = append(w.set, uid+"/"+container)
	if w.broken != nil {
		return w.broken
	}
	_, err := w.ledger.Resize(uid, container, shares)
	return err
}

func (w *world) OnPod(p events.Pod, reason events.Reason, format string, args ...any) {
	w.told = append(w.told, p.Name+" "+reason.Name+": "+fmt.Sprintf(format, args...))
}

func (w *world) pod(name string) *corev1.Pod {
	p, err := w.client.CoreV1().Pods("ns").Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// want requests sizes for a pod; "" removes the request.
func (w *world) want(name, text string) {
	p := w.pod(name)
	p.Annotations[resize.Annotation] = text
	if text == "" {
		delete(p.Annotations, resize.Annotation)
	}
	p.ResourceVersion += "1"
	if _, err := w.client.CoreV1().Pods("ns").Update(w.t.Context(), p, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) round() { w.resizer.reportAll(w.t.Context(), w.resizer.setAll(true)) }

// holds returns the sizes of a container, as "MiB/percent".
func (w *world) holds(name, container string) string {
	a, _ := w.ledger.Get("uid-"+name, container)
	return fmt.Sprintf("%d/%d", a.Devices[0].MemoryBytes>>20, a.Devices[0].ComputePPM/10_000)
}

// conditions returns the conditions of pod "p" as "type reason: message".
func (w *world) conditions() []string {
	var all []string
	for _, c := range w.pod("p").Status.Conditions {
		if c.Status != corev1.ConditionTrue || c.LastTransitionTime.IsZero() {
			w.t.Errorf("condition %+v", c)
		}
		all = append(all, fmt.Sprintf("%s %s: %s", strings.TrimPrefix(string(c.Type), "nri-vgpu.io/"), c.Reason, c.Message))
	}
	return all
}

func (w *world) patches() (n int) {
	for _, action := range w.client.Actions() {
		if _, ok := action.(clienttesting.PatchAction); ok {
			n++
		}
	}
	return n
}

// asking returns a pod whose containers "a", "b" and so on each request memory in MiB and a percentage of
// the GPU's time.
func asking(name string, sizes ...[2]int64) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), Annotations: map[string]string{}, ResourceVersion: "1"}}
	for i, size := range sizes {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: string(rune('a' + i)), Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
			"nri-vgpu.io/vgpu-memory": *resource.NewQuantity(size[0], resource.DecimalSI),
			"nri-vgpu.io/vgpu-cores":  *resource.NewQuantity(size[1], resource.DecimalSI),
		}}})
	}
	return p
}

func TestSizesAreSetAndReported(t *testing.T) {
	w := newWorld(t, asking("p", [2]int64{4096, 30}, [2]int64{1024, 10}), asking("q", [2]int64{4096, 30}))
	for _, step := range []struct {
		want, holds, report string
	}{
		{`{"a":{"memory":8192,"cores":60}}`, "8192/60", `{"a":{"memory":8192,"cores":60,"requested":{"memory":8192,"cores":60}}}`},
		{`{"a":{"memory":8192}}`, "8192/30", `{"a":{"memory":8192,"requested":{"memory":8192}}}`},
		{`{"a":{"memory":1,"cores":1}}`, "1/1", `{"a":{"memory":1,"cores":1,"requested":{"memory":1,"cores":1}}}`},
		{`{"a":{}}`, "4096/30", `{"a":{}}`},
		{`{"a":{"cores":45},"b":{"memory":512}}`, "4096/45", `{"a":{"cores":45,"requested":{"cores":45}},"b":{"memory":512,"requested":{"memory":512}}}`},
		{"", "4096/30", ""},
		{"", "4096/30", ""},
	} {
		w.want("p", step.want)
		w.round()
		if got := w.holds("p", "a"); got != step.holds {
			t.Errorf("%s: holds %s, want %s", step.want, got, step.holds)
		}
		if got := w.pod("p").Annotations[resize.ReportAnnotation]; got != step.report {
			t.Errorf("%s: reported %s, want %s", step.want, got, step.report)
		}
		if got := w.conditions(); got != nil {
			t.Errorf("%s: conditions %q", step.want, got)
		}
	}
	if got := w.holds("p", "b"); got != "1024/10" {
		t.Errorf("the other container holds %s", got)
	}
	if slices.Contains(w.set, "uid-q/a") || w.changed != 8 || len(w.pod("q").Annotations) != 0 {
		t.Errorf("set %q, changed %d times, pod q has %q", w.set, w.changed, w.pod("q").Annotations)
	}
	if got := testutil.ToFloat64(w.resizer.metrics.results.WithLabelValues(done)); got != 6 {
		t.Errorf("counted %v", got)
	}
}

func TestSizesThatAreNotInForce(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		broken     error
		pending    string
		message    string
		condition  string
	}{
		{"beyond the GPU's room", `{"a":{"memory":8192}}`, nil, "Deferred", "its GPU has no room for 8192 MiB and 30 % of the time of one GPU", "ResizePending Deferred"},
		{"below the use", `{"a":{"memory":2048}}`, fmt.Errorf("x: %w", &placement.InUseError{UUID: "GPU-0", Used: 3 << 30, Want: 2 << 30}), "Deferred",
			"the container uses more than 2048 MiB of GPU GPU-0", "ResizePending Deferred"},
		{"before the runtime has listed its containers", `{"a":{"memory":2048}}`, placement.ErrNotReady, "Deferred", placement.ErrNotReady.Error(), "ResizePending Deferred"},
		{"on a full disk", `{"a":{"memory":2048}}`, errors.New("no space left"), "InProgress", "see the log of the node's agent", "ResizeInProgress InProgress"},
		{"more memory than the namespace may have", `{"a":{"memory":8193}}`, nil, "Infeasible",
			"8193 MiB of a GPU exceed the pod's request (4096) and the maximum of its namespace (8192): request less, or raise resize.maximum in config.toml", "ResizePending Infeasible"},
		{"more time than the namespace may have", `{"a":{"cores":61}}`, nil, "Infeasible", "61 % of the time of a GPU exceed the pod's request (30) and the maximum of its namespace (60)", "ResizePending Infeasible"},
		{"an invalid request", `{"a":{"memory":"1Gi"}}`, nil, "Infeasible", "annotation nri-vgpu.io/resize: allowed: an object", "ResizePending Infeasible"},
		{"an unknown container", `{"c":{"memory":1}}`, nil, "Infeasible", `no container "c"`, "ResizePending Infeasible"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, asking("p", [2]int64{4096, 30}), asking("full", [2]int64{9000, 30}))
			w.broken = tt.broken
			w.want("p", tt.want)
			for range 3 {
				w.round()
			}
			if got := w.holds("p", "a"); got != "4096/30" {
				t.Errorf("holds %s", got)
			}
			report := resize.Reports(w.pod("p"))["a"]
			if report.Pending != tt.pending || !strings.Contains(report.Message, tt.message) || report.Size != (resize.Size{}) {
				t.Errorf("reported %+v", report)
			}
			conditions := w.conditions()
			if len(conditions) != 1 || !strings.HasPrefix(conditions[0], tt.condition+": container a: ") || !strings.Contains(conditions[0], tt.message) {
				t.Errorf("conditions %q", conditions)
			}
			if w.patches() != 1 || len(w.told) != 1 || !strings.HasPrefix(w.told[0], `p VGPUNotResized: the resize of container "a" is `+resultOf(tt.pending)+": ") {
				t.Errorf("%d writes, Events %q", w.patches(), w.told)
			}
			w.broken = nil
			w.ledger.Release("uid-full")
			w.want("p", `{"a":{"memory":8192}}`)
			w.round()
			if got := w.conditions(); got != nil || w.holds("p", "a") != "8192/30" {
				t.Errorf("afterwards the container holds %s, conditions %q", w.holds("p", "a"), got)
			}
		})
	}
}

// TestNamespacesMayShrinkAndReturn checks a namespace without a maximum. No container grows beyond its
// request, but containers may shrink and get their request back.
func TestNamespacesMayShrinkAndReturn(t *testing.T) {
	w := newWorld(t, asking("p", [2]int64{4096, 30}))
	w.resizer.Config.Resize = config.Default().Resize
	for _, step := range []struct{ want, holds, pending string }{
		{`{"a":{"memory":1024,"cores":10}}`, "1024/10", ""},
		{`{"a":{"memory":4096,"cores":30}}`, "4096/30", ""},
		{`{"a":{"memory":4097}}`, "4096/30", "Infeasible"},
		{`{"a":{"cores":31}}`, "4096/30", "Infeasible"},
	} {
		w.want("p", step.want)
		w.round()
		if got := w.holds("p", "a"); got != step.holds || resize.Reports(w.pod("p"))["a"].Pending != step.pending {
			t.Errorf("%s: holds %s, reported %+v", step.want, got, resize.Reports(w.pod("p")))
		}
	}
}

// TestGrowthOfTimeWithoutARequest checks that a container whose spec requests no time may reserve time
// only up to the maximum of its namespace.
func TestGrowthOfTimeWithoutARequest(t *testing.T) {
	p := asking("p", [2]int64{4096, 0})
	delete(p.Spec.Containers[0].Resources.Limits, "nri-vgpu.io/vgpu-cores")
	w := newWorld(t, p)
	for _, step := range []struct{ want, holds, pending string }{
		{`{"a":{"cores":61}}`, "4096/0", "Infeasible"},
		{`{"a":{"cores":60}}`, "4096/60", ""},
		{"", "4096/0", ""},
	} {
		w.want("p", step.want)
		w.round()
		if got := w.holds("p", "a"); got != step.holds || resize.Reports(w.pod("p"))["a"].Pending != step.pending {
			t.Errorf("%s: holds %s, reported %+v", step.want, got, resize.Reports(w.pod("p")))
		}
	}
}

// TestAFirstLimitOnTimeFollowsThePolicy checks the first limit on time of a container. Only under the
// policy "share" may the container use idle time beyond the limit.
func TestAFirstLimitOnTimeFollowsThePolicy(t *testing.T) {
	for policy, want := range map[string]uint32{config.ComputeShare: request.Whole, config.ComputeCap: 0} {
		p := asking("p", [2]int64{4096, 0})
		delete(p.Spec.Containers[0].Resources.Limits, "nri-vgpu.io/vgpu-cores")
		cfg := config.Default()
		cfg.Compute.Policy = policy
		cfg.Resize.Maximum = []config.ResizeMaximum{{Namespace: "ns", Cores: 60}}
		w := newConfiguredWorld(t, cfg, p)
		w.want("p", `{"a":{"cores":30}}`)
		w.round()
		a, _ := w.ledger.Get("uid-p", "a")
		if got := a.Devices[0]; got.ComputePPM != 300_000 || got.MaximumPPM != want {
			t.Errorf("policy %s: %d ppm, at most %d; want 300000, at most %d", policy, got.ComputePPM, got.MaximumPPM, want)
		}
	}
}

// TestShrinkingComesFirst checks that one round moves room from a container to another.
func TestShrinkingComesFirst(t *testing.T) {
	w := newWorld(t, asking("a", [2]int64{4096, 30}), asking("b", [2]int64{8192, 60}))
	w.want("a", `{"a":{"memory":8192,"cores":60}}`)
	w.want("b", `{"a":{"memory":4096,"cores":30}}`)
	w.round()
	if w.holds("a", "a") != "8192/60" || w.holds("b", "a") != "4096/30" {
		t.Errorf("hold %s and %s", w.holds("a", "a"), w.holds("b", "a"))
	}
}

// TestTriesAreBounded checks that a round tries a bounded number of sizes, and tries new requests
// first. A size that the round does not try keeps its report.
func TestTriesAreBounded(t *testing.T) {
	documented.Bound(t, "requested sizes of running containers", documented.Count(mostTries)+" tries in a round")
	const many = mostTries + 20
	var all []*corev1.Pod
	for i := range many {
		p := asking(fmt.Sprint("p", i), [2]int64{16, 0})
		delete(p.Spec.Containers[0].Resources.Limits, "nri-vgpu.io/vgpu-cores")
		all = append(all, p)
	}
	w := newWorld(t, append(all, asking("new", [2]int64{16, 1}), asking("full", [2]int64{8192, 1}))...)
	w.resizer.Config.Resize.Maximum = []config.ResizeMaximum{{Namespace: "ns", MemoryMiB: 16384, Cores: 100}}
	for i := range many {
		w.want(fmt.Sprint("p", i), `{"a":{"memory":8192}}`)
	}
	pending := func() (deferred int) {
		for i := range many {
			if resize.Reports(w.pod(fmt.Sprint("p", i)))["a"].Pending == resize.Deferred {
				deferred++
			}
		}
		return deferred
	}
	for round, wantPatches := range []int{many, many + 20} {
		w.set = nil
		w.round()
		if len(w.set) != mostTries || pending() != many || w.patches() > wantPatches {
			t.Errorf("round %d: %d tries, %d deferred, %d writes", round, len(w.set), pending(), w.patches())
		}
	}
	patches := w.patches()
	w.want("new", `{"a":{"memory":8}}`)
	w.set = nil
	w.round()
	if w.set[0] != "uid-new/a" || w.holds("new", "a") != "8/1" || w.patches() > patches+1+20 {
		t.Errorf("tried %q first, %d writes more", w.set[0], w.patches()-patches)
	}
	patches = w.patches()
	for range 5 {
		w.round()
	}
	if w.patches() > patches+20 {
		t.Errorf("%d writes in five rounds without a change", w.patches()-patches)
	}
}

// TestNewRequestsAreTriedAtOnce checks that requests which wait for the clock take no room in a round
// from new requests.
func TestNewRequestsAreTriedAtOnce(t *testing.T) {
	var all []*corev1.Pod
	for i := range mostTries + 1 {
		p := asking(fmt.Sprint("p", i), [2]int64{16, 0})
		p.Namespace = p.Name
		delete(p.Spec.Containers[0].Resources.Limits, "nri-vgpu.io/vgpu-cores")
		p.Annotations = map[string]string{
			resize.Annotation:       `{"a":{"memory":16384}}`,
			resize.ReportAnnotation: `{"a":{"requested":{"memory":16384},"pending":"Deferred"}}`,
		}
		all = append(all, p)
	}
	w := newWorld(t, append(all, asking("new", [2]int64{16, 1}, [2]int64{16, 1}))...)
	w.resizer.Config.Resize.Maximum = []config.ResizeMaximum{{Namespace: "*", MemoryMiB: 16384}}
	w.want("new", `{"a":{"memory":8},"b":{"memory":8}}`)
	w.resizer.setAll(false)
	if w.holds("new", "a") != "8/1" || w.holds("new", "b") != "8/1" || len(w.set) != 2 {
		t.Errorf("hold %s and %s, tried %q", w.holds("new", "a"), w.holds("new", "b"), w.set)
	}
}

// TestOnlyNamedContainersAreResized checks that a container without a requested size keeps its size,
// and that later containers of its pod get their sizes.
func TestOnlyNamedContainersAreResized(t *testing.T) {
	w := newWorld(t, asking("p", [2]int64{4096, 30}, [2]int64{4096, 30}))
	w.want("p", `{"b":{"memory":2048}}`)
	w.round()
	if w.holds("p", "a") != "4096/30" || w.holds("p", "b") != "2048/30" {
		t.Errorf("hold %s and %s", w.holds("p", "a"), w.holds("p", "b"))
	}
}

func TestOrder(t *testing.T) {
	for _, c := range []struct {
		a, b bool
		want int
	}{{false, false, 0}, {true, true, 0}, {false, true, -1}, {true, false, 1}} {
		if got := order(c.a, c.b); got != c.want {
			t.Errorf("order(%t, %t) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

// TestNamespacesTakeTurns checks that a namespace with many requests does not delay another namespace.
func TestNamespacesTakeTurns(t *testing.T) {
	crowd := &pod{Pod: asking("crowd")}
	for i := range 2 * mostTries {
		crowd.containers = append(crowd.containers, &container{name: fmt.Sprint(i)})
	}
	other := &pod{Pod: asking("other"), containers: []*container{{name: "again", retried: true}, {name: "grows", grows: true}, {name: "done", inForce: true}}}
	other.Namespace = "other"
	order := tries([]*pod{crowd, other})
	if len(order) != 2*mostTries+2 || order[0].Namespace != "ns" || order[1].name != "grows" || order[3].name != "again" {
		t.Errorf("the first four are %s, %s, %s and %s", order[0].name, order[1].name, order[2].name, order[3].name)
	}
}

// TestRequestsAreTriedAgainByTheClock checks that a change of pods does not repeat tries.
func TestRequestsAreTriedAgainByTheClock(t *testing.T) {
	w := newWorld(t, asking("p", [2]int64{4096, 30}), asking("full", [2]int64{9000, 30}))
	w.want("p", `{"a":{"memory":8192}}`)
	w.round()
	w.set = nil
	w.resizer.setAll(false)
	if len(w.set) != 0 {
		t.Errorf("tried %q", w.set)
	}
	if w.resizer.setAll(true); len(w.set) != 1 {
		t.Errorf("tried %q", w.set)
	}
}

// restart replaces the agent by an agent with another configuration. The new agent has the allocations
// that the old agent's files contain.
func (w *world) restart(cfg config.Config) {
	held := w.ledger.Allocations()
	w.start(cfg)
	for _, a := range held {
		text, err := json.Marshal(a)
		if err != nil {
			w.t.Fatal(err)
		}
		var saved placement.Allocation
		if err := errors.Join(json.Unmarshal(text, &saved), w.ledger.Restore(saved)); err != nil {
			w.t.Fatal(err)
		}
	}
}

// TestResizesStartFromThePlacement checks that a request which omits an amount keeps the amount at the
// container's placement. Since then, the configuration has changed, so the spec now means another
// amount.
func TestResizesStartFromThePlacement(t *testing.T) {
	const hami = "[node]\nforeign_resources = []\n[dialects.hami]\nenabled = true\n"
	const pools = "[node]\nreserved_memory_mib = 0\n[[pool]]\nname = \"small\"\nnode_selector = \"size=small\"\n" +
		"[pool.node]\nreserved_memory_mib = 8192\n[pool.compute]\npolicy = \"share\"\n"
	small := map[string]string{"size": "small"}
	for _, tt := range []struct {
		name          string
		before, after string            // config.toml
		labels        map[string]string // of the Node, afterwards
		limits        map[corev1.ResourceName]int64
		placed        string
		want, holds   string
		report        resize.Report
	}{
		{"default memory", hami + "default_memory_mib = 2048\n", hami + "default_memory_mib = 4096\n", nil,
			map[corev1.ResourceName]int64{"nvidia.com/gpu": 1, "nvidia.com/gpucores": 30}, "2048/30",
			`{"a":{"cores":20}}`, "2048/20", resize.Report{Size: resize.Size{MemoryMiB: 2048, Cores: 20}, Requested: resize.Size{Cores: 20}}},
		{"memory of cores", "[dialects.native]\nmemory_of_cores = \"proportional\"\n", "[dialects.native]\nmemory_of_cores = \"all\"\n", nil,
			map[corev1.ResourceName]int64{"nri-vgpu.io/vgpu-cores": 25}, "4096/25",
			`{"a":{"cores":20}}`, "4096/20", resize.Report{Size: resize.Size{MemoryMiB: 4096, Cores: 20}, Requested: resize.Size{Cores: 20}}},
		{"unit of memory", hami + "memory_factor = 1\n", hami + "memory_factor = 1024\n", nil,
			map[corev1.ResourceName]int64{"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2048, "nvidia.com/gpucores": 30}, "2048/30",
			`{"a":{"cores":20}}`, "2048/20", resize.Report{Size: resize.Size{MemoryMiB: 2048, Cores: 20}, Requested: resize.Size{Cores: 20}}},
		{"unit of time", "[dialects.aws]\nslots_per_gpu = 8\n", "[dialects.aws]\nslots_per_gpu = 4\n", nil,
			map[corev1.ResourceName]int64{"k8s.amazonaws.com/vgpu": 2}, "4096/25",
			`{"a":{"memory":1024}}`, "1024/25", resize.Report{Size: resize.Size{MemoryMiB: 1024, Cores: 25}, Requested: resize.Size{MemoryMiB: 1024}}},
		{"pool", pools, pools, small,
			map[corev1.ResourceName]int64{"nri-vgpu.io/vgpu-memory-percentage": 50, "nri-vgpu.io/vgpu-cores": 30}, "8192/30",
			`{"a":{"cores":20}}`, "8192/20", resize.Report{Size: resize.Size{MemoryMiB: 8192, Cores: 20}, Requested: resize.Size{Cores: 20}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := asking("p", [2]int64{})
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{}
			for name, amount := range tt.limits {
				p.Spec.Containers[0].Resources.Limits[name] = *resource.NewQuantity(amount, resource.DecimalSI)
			}
			w := newConfiguredWorld(t, configured(t, tt.before, nil), p)
			after := configured(t, tt.after, tt.labels)
			placed, _ := w.ledger.Get("uid-p", "a")
			if got := w.holds("p", "a"); got != tt.placed {
				t.Fatalf("placed %s, want %s", got, tt.placed)
			}
			w.restart(after)
			for range 2 { // the second agent finds what the first has written
				w.want("p", tt.want)
				w.round()
				if got, report := w.holds("p", "a"), resize.Reports(w.pod("p"))["a"]; got != tt.holds || report != tt.report {
					t.Errorf("holds %s and reports %+v, want %s and %+v", got, report, tt.holds, tt.report)
				}
				w.restart(after)
			}
			w.want("p", "")
			w.round()
			if held, _ := w.ledger.Get("uid-p", "a"); !slices.Equal(held.Devices, placed.Devices) {
				t.Errorf("returned to %+v, want %+v", held.Devices, placed.Devices)
			}
		})
	}
}

// configured returns the configuration of a Node with labels.
func configured(t *testing.T, toml string, labels map[string]string) config.Config {
	t.Helper()
	file, err := config.ParseFile([]byte(toml))
	if err != nil {
		t.Fatal(err)
	}
	cfg, _ := file.For(labels)
	return cfg
}

// TestResizeByAnOlderAgent checks a container that an older agent has resized, without a record of the
// sizes at the placement. The sizes of the pod's spec then replace the sizes at the placement.
func TestResizeByAnOlderAgent(t *testing.T) {
	w := newWorld(t, asking("p", [2]int64{4096, 30}))
	a, _ := w.ledger.Get("uid-p", "a")
	a.Resized, a.Devices[0].MemoryBytes = true, 1<<30
	w.ledger.SetResized(a)
	for _, step := range []struct{ want, holds string }{{`{"a":{"cores":20}}`, "4096/20"}, {"", "4096/30"}} {
		w.want("p", step.want)
		w.round()
		if got := w.holds("p", "a"); got != step.holds {
			t.Errorf("%s: holds %s, want %s", step.want, got, step.holds)
		}
	}
}

func TestMirrorsAreNotResized(t *testing.T) {
	p := asking("p", [2]int64{4096, 30})
	w := newWorld(t, p)
	mirror := w.pod("p")
	controls := true
	mirror.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n", Controller: &controls}}
	mirror.Spec.NodeName = "n"
	mirror.Annotations = map[string]string{pods.MirrorAnnotation: "uid-p", pods.HashAnnotation: "uid-p", pods.SourceAnnotation: "file", resize.Annotation: `{"a":{"memory":1}}`}
	if !pods.IsMirror(mirror) {
		t.Fatal("not a mirror")
	}
	if _, err := w.client.CoreV1().Pods("ns").Update(t.Context(), mirror, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.round()
	if w.holds("p", "a") != "4096/30" || len(w.set) != 0 || w.patches() != 0 {
		t.Errorf("holds %s, set %q", w.holds("p", "a"), w.set)
	}
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, asking("p", [2]int64{4096, 30}))
		w.unready = true
		go w.resizer.Run(t.Context())
		w.want("p", `{"a":{"memory":1024}}`)
		w.resizer.Poke()
		synctest.Wait()
		if len(w.set) != 0 {
			t.Error("resized before the pods are known")
		}
		w.unready = false
		w.resizer.Poke()
		synctest.Wait()
		if w.holds("p", "a") != "1024/30" {
			t.Errorf("holds %s", w.holds("p", "a"))
		}
		w.want("p", `{"a":{"memory":2048}}`) // nobody pokes
		time.Sleep(interval)
		synctest.Wait()
		if w.holds("p", "a") != "2048/30" {
			t.Errorf("holds %s after %v", w.holds("p", "a"), interval)
		}
	})
}
