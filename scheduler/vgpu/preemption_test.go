// SPDX-License-Identifier: Apache-2.0

package vgpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	fwk "k8s.io/kube-scheduler/framework"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	internalqueue "k8s.io/kubernetes/pkg/scheduler/backend/queue"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultbinder"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/queuesort"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	tf "k8s.io/kubernetes/pkg/scheduler/testing/framework"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// These are the sizes of the nodes in preemption cases.
const (
	caseMiB  = 16 << 10 // memory of a GPU
	caseCPUs = 10       // processors of a node
)

// tenant is a pod of a preemption case, with the pod's amounts for the oracle.
type tenant struct {
	*corev1.Pod
	priority           int32
	memory, cores, cpu int64
	gpus               []int // the GPUs that the pod holds
}

// preemptionCase is a cluster in which a pod of high priority may need victims.
type preemptionCase struct {
	*rand.Rand
	gpus    []int // number of GPUs of each node
	tenants [][]tenant
	pod     tenant
	number  int // number of GPUs that the pod requests
}

func newCase(seed uint64) *preemptionCase {
	c := &preemptionCase{Rand: rand.New(rand.NewPCG(seed, 7))}
	for node := range 1 + c.IntN(3) {
		c.gpus = append(c.gpus, 1+c.IntN(3))
		c.tenants = append(c.tenants, nil)
		for range c.IntN(10) {
			c.settle(node)
		}
	}
	c.number = 1 + c.IntN(2)
	c.pod = c.draw("preemptor", 10, c.number)
	c.pod.memory = 4<<10 + c.Int64N(12)<<10
	c.pod.build(c.number)
	return c
}

// draw returns a pod with random amounts.
func (c *preemptionCase) draw(name string, priority int32, gpus int) tenant {
	started := metav1.NewTime(time.Unix(1e9+c.Int64N(1000), 0))
	t := tenant{priority: priority, Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}}}
	t.Status.StartTime = &started
	if c.IntN(3) == 0 {
		t.cpu = c.Int64N(5)
	}
	if gpus > 0 {
		t.memory, t.cores = 1<<10+c.Int64N(9)<<10, []int64{0, 0, 20, 50}[c.IntN(4)]
	}
	return t
}

// build sets the pod's spec.
func (t *tenant) build(gpus int) {
	limits := corev1.ResourceList{corev1.ResourceCPU: units(t.cpu)}
	if gpus > 0 {
		d := config.Default().Dialects.Native
		limits[corev1.ResourceName(d.Memory)], limits[corev1.ResourceName(d.Number)] = units(t.memory), units(int64(gpus))
		if t.cores > 0 {
			limits[corev1.ResourceName(d.Cores)] = units(t.cores)
		}
	}
	t.Spec.Priority = &t.priority
	t.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Limits: limits, Requests: limits}}}
}

// settle draws a pod, and adds the pod to a node that has room for it.
func (c *preemptionCase) settle(node int) {
	gpus := c.IntN(3)
	t := c.draw(fmt.Sprintf("pod-%d-%d", node, len(c.tenants[node])), []int32{1, 1, 2, 3, 20}[c.IntN(5)], gpus)
	free := c.room(node, 0, &t)
	if free == nil || len(free) < gpus {
		return
	}
	c.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
	t.gpus = free[:gpus]
	t.build(gpus)
	t.Spec.NodeName = fmt.Sprint("node-", node)
	if gpus > 0 {
		text := ""
		for _, g := range t.gpus {
			text += fmt.Sprintf(",%q", uuidOf(node, g))
		}
		t.Annotations = map[string]string{assign.Annotation: `{"main":[` + text[1:] + `]}`}
	}
	c.tenants[node] = append(c.tenants[node], t)
}

func uuidOf(node, g int) string { return fmt.Sprintf("GPU-%d-%d", node, g) }

// room returns the GPUs of a node that have room for a pod, without the tenants in a set of bits.
// If the node lacks processors, room returns nil. room is the oracle, and uses no code of the
// plugin.
func (c *preemptionCase) room(node int, without uint, pod *tenant) (free []int) {
	memory, cores, slots, cpu := make([]int64, c.gpus[node]), make([]int64, c.gpus[node]), make([]int, c.gpus[node]), int64(0)
	for i, t := range c.tenants[node] {
		if without&(1<<i) != 0 {
			continue
		}
		cpu += t.cpu
		for _, g := range t.gpus {
			memory[g] += t.memory
			cores[g] += t.cores
			slots[g]++
		}
	}
	if cpu+pod.cpu > caseCPUs {
		return nil
	}
	free = []int{}
	for g := range memory {
		if memory[g]+pod.memory <= caseMiB && cores[g]+pod.cores <= 100 && slots[g] < config.Default().Node.SlotsPerGPU {
			free = append(free, g)
		}
	}
	return free
}

// cost is the cost of victims. As in kube-scheduler, a smaller highest priority is better, and then
// a smaller sum of priorities. In the sum, each victim counts more than any priority.
type cost struct {
	highest int32
	sum     int64
}

func (a cost) less(b cost) bool {
	return a.highest < b.highest || a.highest == b.highest && a.sum < b.sum
}

func costOf(priorities ...int32) cost {
	all := cost{highest: math.MinInt32}
	for _, p := range priorities {
		all.highest = max(all.highest, p)
		all.sum += int64(p) + math.MaxInt32 + 1
	}
	return all
}

// cheapest returns the least cost of victims on any node, whether victims exist that make room, and
// whether the pod fits without victims.
func (c *preemptionCase) cheapest() (best cost, possible, fits bool) {
	for node := range c.tenants {
		for set := range uint(1) << len(c.tenants[node]) {
			var priorities []int32
			allowed := true
			for i, t := range c.tenants[node] {
				if set&(1<<i) != 0 {
					priorities = append(priorities, t.priority)
					allowed = allowed && t.priority < c.pod.priority
				}
			}
			if !allowed || len(c.room(node, set, &c.pod)) < c.number {
				continue
			}
			if set == 0 {
				return cost{}, false, true
			}
			if one := costOf(priorities...); !possible || one.less(best) {
				best, possible = one, true
			}
		}
	}
	return best, possible, false
}

func (c *preemptionCase) nodes() (nodes []*corev1.Node) {
	for node, count := range c.gpus {
		var gpus []gpu.GPU
		for g := range count {
			gpus = append(gpus, gpu.GPU{UUID: uuidOf(node, g), Index: g, MemoryBytes: caseMiB << 20, Healthy: true})
		}
		d := config.Default().Dialects.Native
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprint("node-", node), Annotations: map[string]string{assign.GPUsAnnotation: assign.FormatGPUs(gpus)},
		}}
		n.Status.Allocatable = corev1.ResourceList{
			corev1.ResourceCPU: units(caseCPUs), corev1.ResourcePods: units(110), corev1.ResourceName(d.Memory): units(int64(count) * caseMiB),
			corev1.ResourceName(d.Cores): units(int64(count) * 100), corev1.ResourceName(d.Number): units(int64(count * config.Default().Node.SlotsPerGPU)),
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// framework returns kube-scheduler's framework with the plugins and with the case's nodes and pods.
func (c *preemptionCase) framework(t *testing.T) (framework.Framework, []fwk.NodeInfo) {
	t.Helper()
	var pods []*corev1.Pod
	for _, all := range c.tenants {
		for i := range all {
			pods = append(pods, all[i].Pod)
		}
	}
	snapshot := internalcache.NewTestSnapshotWithPodGroups(pods, c.nodes(), nil)
	f := newFramework(t, snapshot)
	infos, err := snapshot.NodeInfos().List()
	if err != nil {
		t.Fatal(err)
	}
	return f, infos
}

// newFramework returns kube-scheduler's framework with the plugins and with a snapshot.
func newFramework(t *testing.T, snapshot *internalcache.Snapshot) framework.Framework {
	t.Helper()
	metrics.Register() // the queue needs these metrics
	client := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	f, err := tf.NewFramework(t.Context(), []tf.RegisterPluginFunc{
		tf.RegisterQueueSortPlugin(queuesort.Name, queuesort.New),
		tf.RegisterPluginAsExtensions(Name, New, "PreFilter", "Filter"),
		tf.RegisterPluginAsExtensions(FitName, NewFit, "PreFilter", "Filter"),
		tf.RegisterBindPlugin(defaultbinder.Name, defaultbinder.New),
	}, "", frameworkruntime.WithClientSet(client), frameworkruntime.WithInformerFactory(factory),
		frameworkruntime.WithPodNominator(internalqueue.NewSchedulingQueue(nil, factory)),
		frameworkruntime.WithSnapshotSharedLister(snapshot), frameworkruntime.WithMutableSnapshotLister(snapshot))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// victims returns the cost of the victims that the scheduler chooses, and whether the scheduler
// chooses any victim.
func (c *preemptionCase) victims(t *testing.T) (cost, bool) {
	t.Helper()
	f, infos := c.framework(t)
	state := framework.NewCycleState()
	if _, status, _ := f.RunPreFilterPlugins(t.Context(), state, c.pod.Pod); !status.IsSuccess() {
		t.Fatal(status)
	}
	plugin, err := NewPreemption(t.Context(), nil, f)
	if err != nil {
		t.Fatal(err)
	}
	plugin.(*Preemption).patience = time.Minute // long enough for a busy machine
	evaluator := plugin.(*Preemption).Evaluator
	candidates, _, err := evaluator.DryRunPreemption(t.Context(), state, c.pod.Pod, infos, nil, 0, int32(len(infos)))
	if err != nil {
		for node, all := range c.tenants {
			for _, one := range all {
				t.Logf("node %d (%d GPUs): %s priority %d memory %d cores %d cpu %d on %v", node, c.gpus[node], one.Name, one.priority, one.memory, one.cores, one.cpu, one.gpus)
			}
		}
		t.Fatalf("%v; for %d x %d MiB, %d cores, %d cpu", err, c.number, c.pod.memory, c.pod.cores, c.pod.cpu)
	}
	if len(candidates) == 0 {
		return cost{}, false
	}
	var priorities []int32
	for _, pod := range evaluator.SelectCandidate(t.Context(), candidates).Victims().Pods {
		priorities = append(priorities, *pod.Spec.Priority)
	}
	return costOf(priorities...), true
}

// TestVictimsAreTheCheapest checks that the chosen victims are as cheap as the victims that a
// search through all sets of pods on all nodes finds.
func TestVictimsAreTheCheapest(t *testing.T) {
	cases, several := 0, 0
	for seed := uint64(0); cases < 1000; seed++ {
		c := newCase(seed)
		want, possible, fits := c.cheapest()
		if fits {
			continue
		}
		cases++
		got, chosen := c.victims(t)
		if chosen != possible || got != want {
			t.Errorf("seed %d: chosen: %t at %+v; possible: %t at %+v", seed, chosen, got, possible, want)
		}
		if possible && want.sum > 2*math.MaxInt32 {
			several++
		}
	}
	if several < 100 {
		t.Errorf("only %d of %d cases need several victims", several, cases)
	}
}
