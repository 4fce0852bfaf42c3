// SPDX-License-Identifier: Apache-2.0

package why

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

var update = flag.Bool("update", false, "write the golden files")

const (
	gib    = 1 << 30
	memory = "nri-vgpu.io/vgpu-memory"
	cores  = "nri-vgpu.io/vgpu-cores"
	number = "nri-vgpu.io/vgpu-number"
)

func amounts(list map[corev1.ResourceName]int64) corev1.ResourceList {
	all := corev1.ResourceList{}
	for name, n := range list {
		all[name] = *resource.NewQuantity(n, resource.DecimalSI)
	}
	return all
}

// pod returns a pod whose containers have these limits.
func pod(name string, limits ...map[corev1.ResourceName]int64) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	for i, l := range limits {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
			Name: string(rune('a' + i)), Resources: corev1.ResourceRequirements{Limits: amounts(l), Requests: amounts(l)},
		})
	}
	return p
}

// node returns a node with two GPUs of 16 GiB that it lists.
func node(name string, change ...func(*corev1.Node)) *corev1.Node {
	gpus := []gpu.GPU{{UUID: "GPU-0", MemoryBytes: 16 * gib, Healthy: true}, {UUID: "GPU-1", Index: 1, MemoryBytes: 16 * gib, Healthy: true}}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Annotations: map[string]string{assign.GPUsAnnotation: assign.FormatGPUs(gpus)},
		Labels: map[string]string{"zone": "a"},
	}}
	n.Status.Allocatable = amounts(map[corev1.ResourceName]int64{memory: 32 << 10, cores: 200, number: 20})
	for _, c := range change {
		c(n)
	}
	return n
}

// on returns a pod that holds a part of a GPU.
func on(name, uuid string, mib int64) *corev1.Pod {
	p := pod(name, map[corev1.ResourceName]int64{memory: mib})
	p.Annotations = map[string]string{assign.Annotation: `{"a":["` + uuid + `"]}`}
	return p
}

func judge(t *testing.T, p *corev1.Pod, n *corev1.Node, pods []*corev1.Pod, rooms []placement.Room) Node {
	t.Helper()
	return Judge(p, n, pods, rooms, config.Default())
}

func TestJudge(t *testing.T) {
	twelve := map[corev1.ResourceName]int64{memory: 12 << 10}
	busy := []*corev1.Pod{on("x", "GPU-0", 8<<10), on("y", "GPU-1", 6<<10)}
	unlisted := func(n *corev1.Node) { n.Annotations = nil }
	rooms := []placement.Room{
		{UUID: "GPU-0", Healthy: true, MemoryBytes: 16 * gib, FreeMemoryBytes: 8 * gib, FreeComputePPM: request.Whole, FreeSlots: 9},
		{UUID: "GPU-1", Index: 1, Healthy: true, MemoryBytes: 16 * gib, FreeMemoryBytes: 14 * gib, FreeComputePPM: request.Whole, FreeSlots: 9},
	}
	for _, tt := range []struct {
		name    string
		pod     *corev1.Pod
		node    *corev1.Node
		pods    []*corev1.Pod
		rooms   []placement.Room
		fits    bool
		against string
		gpus    []string
	}{
		{"room", pod("p", twelve), node("n"), nil, nil, true, "", []string{"", ""}},
		{"room on one GPU", pod("p", twelve), node("n"), busy[:1], nil, true, "", []string{"8192 of 12288 MiB are free", ""}},
		{"no room on single GPUs", pod("p", twelve), node("n"), busy, nil, false, "", []string{"8192 of 12288 MiB are free", "10240 of 12288 MiB are free"}},
		{"no room for all containers", pod("p", twelve, twelve), node("n"), busy[:1], nil, false, "not for all parts of the pod at once", nil},
		{"no room for the containers on single GPUs", pod("p", map[corev1.ResourceName]int64{memory: 9 << 10}, map[corev1.ResourceName]int64{memory: 9 << 10}),
			node("n"), busy[1:], nil, true, "", []string{"", ""}},
		{"room for each container alone", pod("p", map[corev1.ResourceName]int64{memory: 9 << 10}, map[corev1.ResourceName]int64{memory: 9 << 10}, map[corev1.ResourceName]int64{memory: 8 << 10}),
			node("n"), []*corev1.Pod{on("x", "GPU-0", 1<<10)}, nil, false, "not for all parts of the pod at once", nil},
		{"a cordon", pod("p", twelve), node("n", func(n *corev1.Node) { n.Spec.Unschedulable = true }), nil, nil, false, "cordoned", []string{"", ""}},
		{"a cordon that the pod tolerates", func() *corev1.Pod {
			p := pod("p", twelve)
			p.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists}}
			return p
		}(), node("n", func(n *corev1.Node) { n.Spec.Unschedulable = true }), nil, nil, true, "", nil},
		{"a taint", pod("p", twelve), node("n", func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "gpu", Value: "x", Effect: corev1.TaintEffectNoSchedule}}
		}), nil, nil, false, "gpu=x:NoSchedule", nil},
		{"a preference", pod("p", twelve), node("n", func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "gpu", Value: "x", Effect: corev1.TaintEffectPreferNoSchedule}}
		}), nil, nil, true, "", nil},
		{"a selector", func() *corev1.Pod {
			p := pod("p", twelve)
			p.Spec.NodeSelector = map[string]string{"zone": "b"}
			return p
		}(), node("n"), nil, nil, false, "selector", nil},
		{"sums", pod("p", twelve), node("n", func(n *corev1.Node) { n.Status.Allocatable = amounts(map[corev1.ResourceName]int64{memory: 10 << 10}) }), nil, nil,
			false, "10240 of 12288 nri-vgpu.io/vgpu-memory are free", nil},
		{"sums with exactly enough", pod("p", twelve), node("n", func(n *corev1.Node) { n.Status.Allocatable = amounts(map[corev1.ResourceName]int64{memory: 12 << 10}) }), nil, nil,
			true, "", nil},
		{"no list and no agent", pod("p", twelve), node("n", unlisted), nil, nil, false, "does not list its GPUs", nil},
		{"a list that means nothing", pod("p", twelve), node("n", func(n *corev1.Node) { n.Annotations[assign.GPUsAnnotation] = "?" }), nil, rooms, false, "not a list of GPUs", nil},
		{"room by the agent", pod("p", twelve), node("n", unlisted), nil, rooms, true, "", []string{"8192 of 12288 MiB are free", ""}},
		{"no room by the agent", pod("p", map[corev1.ResourceName]int64{memory: 15 << 10}), node("n", unlisted), nil, rooms, false, "",
			[]string{"8192 of 15360 MiB are free", "14336 of 15360 MiB are free"}},
		{"one of two GPUs by the agent", pod("p", map[corev1.ResourceName]int64{memory: 12 << 10, number: 2}), node("n", unlisted), nil, rooms, false, "fewer GPUs have room", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := judge(t, tt.pod, tt.node, tt.pods, tt.rooms)
			against := got.Excluded + got.Against
			if got.Fits != tt.fits || !strings.Contains(against, tt.against) || (tt.against == "") != (against == "") {
				t.Errorf("fits: %t, against it %q; want %t, %q", got.Fits, against, tt.fits, tt.against)
			}
			for i, want := range tt.gpus {
				if len(got.GPUs) != len(tt.gpus) || got.GPUs[i].Against != want {
					t.Fatalf("GPUs: %+v, want %q", got.GPUs, tt.gpus)
				}
			}
		})
	}
}

// answer returns the answer of a small cluster for a pod.
func answer(t *testing.T, p *corev1.Pod) Answer {
	t.Helper()
	cfg := config.Default()
	a := Answer{Pod: p}
	a.Asked, a.Invalid = request.Read(p, cfg)
	nodes := []corev1.Node{
		*node("full"), *node("tainted", func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoExecute}}
		}), *node("unknown", func(n *corev1.Node) { n.Annotations = nil }), *node("half"),
	}
	var all []corev1.Pod
	for nodeName, mib := range map[string]int64{"full": 15 << 10, "half": 8 << 10} {
		for _, uuid := range []string{"GPU-0", "GPU-1"} {
			held := on(nodeName+uuid, uuid, mib)
			held.Spec.NodeName = nodeName
			all = append(all, *held)
		}
	}
	ended := on("ended", "GPU-0", 8<<10)
	ended.Spec.NodeName, ended.Status.Phase = "half", corev1.PodSucceeded
	a.judge(nodes, append(all, *ended), nil, config.File{Config: cfg})
	return a
}

// TestByCloseness checks the order of nodes. The names of the nodes are in the opposite order.
func TestByCloseness(t *testing.T) {
	free := func(n uint64) []GPU {
		return []GPU{{Room: placement.Room{FreeMemoryBytes: 1}}, {Room: placement.Room{FreeMemoryBytes: n}}}
	}
	want := []Node{
		{Name: "h", Fits: true, GPUs: free(2)}, {Name: "g", GPUs: free(9)}, {Name: "e", GPUs: free(5)}, {Name: "f", GPUs: free(5)},
		{Name: "d", GPUs: []GPU{{}}}, {Name: "c"}, {Name: "b", Excluded: "x", GPUs: free(99)}, {Name: "a", Excluded: "x"},
	}
	nodes := slices.Clone(want)
	slices.SortFunc(nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	byCloseness(nodes)
	if diff := cmp.Diff(want, nodes); diff != "" {
		t.Error(diff)
	}
}

// TestNodesThatExcludeThePod checks the conclusion if every node excludes the pod.
func TestNodesThatExcludeThePod(t *testing.T) {
	a := Answer{Pod: pod("p"), Nodes: []Node{{Name: "a", Excluded: "x"}, {Name: "b", Excluded: "y"}}}
	if got := a.conclusion(); !strings.HasPrefix(got, "No node accepts the pod") {
		t.Errorf("got %q", got)
	}
}

// TestWriteCountsTheOtherNodes checks that Write counts the nodes beyond the bound.
func TestWriteCountsTheOtherNodes(t *testing.T) {
	a := answer(t, pod("train", map[corev1.ResourceName]int64{memory: 12 << 10}))
	for most, want := range map[int]string{2: "and 2 more nodes", 3: "and 1 more nodes", 4: "", 5: ""} {
		var out bytes.Buffer
		if err := a.Write(&out, most); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(out.String(), "more nodes"); got != (want != "") || !strings.Contains(out.String(), want) {
			t.Errorf("4 nodes, at most %d:\n%s", most, &out)
		}
	}
}

func TestReport(t *testing.T) {
	r := answer(t, pod("train", map[corev1.ResourceName]int64{memory: 12 << 10})).Report()
	if !r.Waits || r.Name != "train" || len(r.Containers) != 1 || len(r.Nodes) != 4 || !strings.HasPrefix(r.Conclusion, "No GPU of 4 nodes has room") {
		t.Errorf("got %+v", r)
	}
	if g := r.Nodes[0].GPUs[1]; r.Nodes[0].Name != "half" || g.Index != 1 || g.FreeMemoryBytes != 8*gib || g.Against != "8192 of 12288 MiB are free" {
		t.Errorf("the first node is %+v", r.Nodes[0])
	}
	if r := answer(t, pod("invalid", map[corev1.ResourceName]int64{memory: 1, cores: 101})).Report(); r.Invalid == "" || len(r.Nodes) != 0 {
		t.Errorf("an invalid request: %+v", r)
	}
	few := answer(t, pod("train", map[corev1.ResourceName]int64{memory: 1}))
	few.Unknown = errors.New("no answer")
	if r := few.Report(); r.Unknown != "no answer" {
		t.Errorf("with an agent that does not answer: %+v", r)
	}
}

func TestWrite(t *testing.T) {
	waiting := pod("train", map[corev1.ResourceName]int64{memory: 12 << 10, cores: 50})
	waiting.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/4 nodes are available:\n 4 no GPU of the node has room for the pod."}}
	small := pod("small", map[corev1.ResourceName]int64{memory: 2 << 10})
	small.Spec.SchedulerName = "nri-vgpu-scheduler"
	bound := pod("bound", map[corev1.ResourceName]int64{memory: 1})
	bound.Spec.NodeName, bound.Status.Phase = "half", corev1.PodRunning
	invalid := pod("invalid", map[corev1.ResourceName]int64{memory: 1, "nri-vgpu.io/vgpu-cores": 101})
	var out bytes.Buffer
	two := pod("two", map[corev1.ResourceName]int64{memory: 8 << 10, number: 2})
	large := pod("large", map[corev1.ResourceName]int64{memory: 20000})
	for _, p := range []*corev1.Pod{waiting, two, large, small, bound, pod("plain", nil), invalid} {
		out.WriteString("--- " + p.Name + "\n")
		if err := answer(t, p).Write(&out, 0); err != nil {
			t.Fatal(err)
		}
	}
	out.WriteString("--- one node\n")
	few := answer(t, waiting)
	few.Unknown = errors.New("the agent on unknown does not answer")
	if err := few.Write(&out, 1); err != nil {
		t.Fatal(err)
	}
	out.WriteString("--- no node\n")
	if err := (Answer{Pod: waiting, Asked: few.Asked}).Write(&out, 0); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "why.golden")
	if *update {
		if err := os.WriteFile(golden, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || out.String() != string(want) {
		t.Errorf("%v, got:\n%s", err, out.String())
	}
}

// TestJudgeReadsRequestsByPool checks that a node judges the requests of pods by the configuration of its
// pool.
func TestJudgeReadsRequestsByPool(t *testing.T) {
	file, err := config.ParseFile([]byte("[[pool]]\nname = \"few\"\nnode_selector = \"zone=a\"\n[pool.dialects.aws]\nslots_per_gpu = 2"))
	if err != nil {
		t.Fatal(err)
	}
	slots := corev1.ResourceName(file.Config.Dialects.AWS.Slots)
	ask := func(name string, n int64) *corev1.Pod { return pod(name, map[corev1.ResourceName]int64{slots: n}) }
	var held []corev1.Pod
	for _, uuid := range []string{"GPU-0", "GPU-1"} {
		p := ask(uuid, 1)
		p.Annotations = map[string]string{assign.Annotation: `{"a":["` + uuid + `"]}`}
		p.UID, p.Spec.NodeName = types.UID(uuid), "n"
		held = append(held, *p)
	}
	offer := func(n *corev1.Node) { n.Status.Allocatable[slots] = *resource.NewQuantity(20, resource.DecimalSI) }
	for zone, want := range map[string]bool{"a": false, "b": true} {
		a := Answer{Pod: ask("waits", 2)}
		a.judge([]corev1.Node{*node("n", offer, func(n *corev1.Node) { n.Labels["zone"] = zone })}, held, nil, file)
		if got := a.Nodes[0]; got.Fits != want {
			t.Errorf("in zone %s the pod fits: %t, %+v", zone, got.Fits, got)
		}
	}
}
