// SPDX-License-Identifier: Apache-2.0

package vgpu

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"weak"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/nri-vgpu/nri-vgpu/internal/fragmentation"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// one returns a pod that requests parts of GPUs in the native dialect.
func one(name string, memory, cores, gpus, cpu int64) *corev1.Pod {
	d := config.Default().Dialects.Native
	limits := corev1.ResourceList{
		corev1.ResourceName(d.Memory): units(memory), corev1.ResourceName(d.Number): units(gpus), corev1.ResourceCPU: units(cpu),
	}
	if cores > 0 {
		limits[corev1.ResourceName(d.Cores)] = units(cores)
	}
	pod := podWith(limits)
	pod.Name, pod.UID = name, types.UID(name)
	return pod
}

// TestValuesAreTheCostsOfTheCluster checks that the plugin's costs equal the costs of
// internal/fragmentation. The plugin visits nodes one by one. internal/fragmentation uses the whole
// cluster, and the benchmarks measure it.
func TestValuesAreTheCostsOfTheCluster(t *testing.T) {
	compared := 0
	for seed := range uint64(40) {
		w := newWorld(seed)
		cfg := config.Default()
		cfg.Node.SlotsPerGPU = 100
		w.cfg = cfg
		p := newPlugin(&nominating{}, cfg)
		p.policy = Fragmentation
		var pods []*corev1.Pod
		for i := range 5 {
			pods = append(pods, one(fmt.Sprint("shape-", i), 1024*(1+w.Int64N(12)), 10*w.Int64N(8), 1+w.Int64N(2), w.Int64N(4)))
			for range 1 + w.IntN(9) {
				p.history.add(kindOf(read(t, p, pods[i]), pods[i]))
			}
		}
		members := w.cluster(t, p, pods)
		for _, pod := range pods {
			a := p.newAsking(read(t, p, pod), pod)
			cluster := clusterOf(a.outlook, members)
			state, infos := framework.NewCycleState(), []fwk.NodeInfo{}
			state.Write(stateKey, a)
			for _, m := range members {
				infos = append(infos, m.info)
			}
			p.PreScore(t.Context(), state, pod, infos)
			for i, m := range members {
				got, err := p.valueOn(a, m.info)
				shape := a.kind.on(m.gpus[0].MemoryBytes)
				_, want, fits := cluster.Cost(i, &shape)
				if (err == nil) != fits {
					t.Errorf("seed %d, node %d: the pod fits: %t, and valueOn returns %v", seed, i, fits, err)
				}
				want *= float64(len(members)) // relative to the room of a mean node
				if fits && math.Abs(got-want) > 1e-3*want+1e-12 {
					t.Errorf("seed %d, node %d: value %g, and the cost is %g", seed, i, got, want)
				}
				if fits {
					compared++
				}
			}
		}
	}
	if compared < 300 {
		t.Errorf("only %d values were compared", compared)
	}
}

func read(t *testing.T, p *Plugin, pod *corev1.Pod) request.Pod {
	t.Helper()
	asked, err := request.Read(pod, p.nodes.Config)
	if err != nil {
		t.Fatal(err)
	}
	return asked
}

// cluster returns nodes with GPUs of one size. Some of the pods run on the nodes.
func (w *world) cluster(t *testing.T, p *Plugin, pods []*corev1.Pod) (members []*member) {
	t.Helper()
	for i := range 4 {
		name := fmt.Sprint("node-", i)
		m := w.member(name)
		for g := range m.gpus {
			m.gpus[g].MemoryBytes = 16 << 30
		}
		m.publish(name, w.cfg)
		node := m.info.Node()
		node.Status.Allocatable[corev1.ResourceCPU], node.Status.Allocatable[corev1.ResourceMemory] = units(64), units(1<<40)
		m.info.SetNode(node)
		for k := range w.IntN(6) {
			running := pods[w.IntN(len(pods))].DeepCopy()
			running.Name, running.UID = fmt.Sprint(name, "-", k), types.UID(fmt.Sprint(name, "-", k))
			assigned, err := p.choose(p.newAsking(read(t, p, running), running), m.info)
			if err == nil {
				m.add(t, withAnnotation(running, assigned))
			}
		}
		members = append(members, m)
	}
	return members
}

// clusterOf returns the members as a cluster of internal/fragmentation.
func clusterOf(o *outlook, members []*member) *fragmentation.Cluster {
	var nodes []fragmentation.Node
	var usual []fragmentation.Usual
	for i := range o.kinds {
		usual = append(usual, fragmentation.Usual{Shape: o.kinds[i].on(16 << 30), Weight: o.weights[i]})
	}
	for _, m := range members {
		n := fragmentation.Node{
			CPU:    64000 - m.info.GetRequested().GetMilliCPU(),
			Memory: 1<<40 - m.info.GetRequested().GetMemory(),
		}
		free := map[string]*fragmentation.Part{}
		for _, g := range m.gpus {
			free[g.UUID] = &fragmentation.Part{Memory: 16 << 30, Compute: request.Whole}
		}
		for _, info := range m.info.GetPods() {
			take(free, info.GetPod())
		}
		for _, g := range m.gpus {
			n.GPUs = append(n.GPUs, *free[g.UUID])
		}
		nodes = append(nodes, n)
	}
	return fragmentation.New(usual, nodes)
}

// take subtracts a pod's parts from the GPUs of its assignment.
func take(free map[string]*fragmentation.Part, pod *corev1.Pod) {
	d := config.Default().Dialects.Native
	limits := pod.Spec.Containers[0].Resources.Limits
	memory, cores := limits[corev1.ResourceName(d.Memory)], limits[corev1.ResourceName(d.Cores)]
	for uuid, part := range free {
		if strings.Contains(pod.Annotations[assign.Annotation], `"`+uuid+`"`) {
			part.Memory -= memory.Value() << 20
			part.Compute -= cores.Value() * request.Whole / 100
		}
	}
}

func TestHistoryForgetsOldPods(t *testing.T) {
	h := newHistory()
	old, recent := kind{gpus: 1}, kind{gpus: 2}
	for range 3000 {
		h.add(old)
	}
	if o := h.outlook(); len(o.kinds) != 1 || o.kinds[0] != old || o.weights[0] != 1 {
		t.Fatalf("the outlook is %+v, %v", o.kinds, o.weights)
	}
	for range 40_000 {
		h.add(recent)
	}
	if o := h.outlook(); len(o.kinds) != 1 || o.kinds[0] != recent {
		t.Errorf("the outlook is %+v, %v", o.kinds, o.weights)
	}
	if h.total >= mostCounted || len(h.counts) > 1 {
		t.Errorf("%v pods of %d kinds are counted", h.total, len(h.counts))
	}
}

func TestOutlookIsOfTheFrequentKinds(t *testing.T) {
	h := newHistory()
	for gpus := range 200 {
		h.add(kind{gpus: gpus})
	}
	if o := h.outlook(); len(o.kinds) != mostKinds {
		t.Errorf("%d kinds are usual", len(o.kinds))
	}
	for range 1800 {
		h.add(kind{gpus: 7})
	}
	for range 1000 {
		h.add(kind{gpus: 8})
	}
	o := h.outlook()
	if o.kinds[0].gpus != 7 || o.kinds[1].gpus != 8 || math.Abs(o.weights[0]-1801.0/3000) > 1e-9 {
		t.Errorf("the first kinds are %+v, %v", o.kinds[:2], o.weights[:2])
	}
	if again := h.outlook(); again != o {
		t.Error("the outlook has changed without a new pod")
	}
}

// TestOldOutlooksAreFreed checks that the plugin's caches keep no old outlook in memory. An outlook
// has the accounts of all nodes.
func TestOldOutlooksAreFreed(t *testing.T) {
	p := newPlugin(&nominating{}, config.Default())
	p.policy = Fragmentation
	pod := one("pod", 1024, 0, 1, 0)
	p.history.add(kindOf(read(t, p, pod), pod))
	old := weak.Make(p.newAsking(read(t, p, pod), pod).outlook)
	if p.history.add(kind{gpus: 1}); p.newAsking(read(t, p, pod), pod).outlook == old.Value() {
		t.Fatal("the outlook is not replaced")
	}
	if runtime.GC(); old.Value() != nil {
		t.Error("the old outlook is still in memory")
	}
	runtime.KeepAlive(p)
}

func TestNormalizeScore(t *testing.T) {
	scores := fwk.NodeScoreList{{Name: "a", Score: 10}, {Name: "b", Score: 30}, {Name: "c", Score: 15}}
	p := &Plugin{policy: Fragmentation}
	p.NormalizeScore(t.Context(), nil, nil, scores)
	if scores[0].Score != 100 || scores[1].Score != 0 || scores[2].Score != 75 {
		t.Errorf("got %v", scores)
	}
	equal := fwk.NodeScoreList{{Name: "a", Score: 10}, {Name: "b", Score: 10}}
	p.NormalizeScore(t.Context(), nil, nil, equal)
	if equal[0].Score != fwk.MaxScore || equal[1].Score != fwk.MaxScore {
		t.Errorf("got %v", equal)
	}
	if p.NormalizeScore(t.Context(), nil, nil, nil); (&Plugin{policy: config.PlaceSpread}).ScoreExtensions() != nil {
		t.Error("the scores of spread are normalized again")
	}
}
