// SPDX-License-Identifier: Apache-2.0

package vgpu

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/choice"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/resize"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// world draws random Nodes and pods. Worlds with equal seeds draw equal histories.
type world struct {
	*rand.Rand
	cfg  config.Config
	pods int
	// assigned are the assignments of the bound pods.
	assigned map[types.UID]string
	// resized counts the resized containers.
	resized int
}

func newWorld(seed uint64) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 1)), cfg: config.Default(), assigned: map[types.UID]string{}}
	w.cfg.Node.SlotsPerGPU = 1 + w.IntN(8)
	w.cfg.Node.ReservedMemoryMiB = w.Uint64N(2) * 700
	if w.IntN(2) == 0 {
		w.cfg.Placement.Policy = config.PlaceSpread
	}
	d := &w.cfg.Dialects
	d.Native.Enabled, d.Alnair.Enabled, d.AWS.Enabled, d.Volcano.Enabled, d.HAMi.Enabled, d.MetaGPU.Enabled = true, true, true, true, true, true
	d.MetaGPU.AllowSpread = true
	d.Native.Amounts = []string{config.AmountsPerGPU, config.AmountsTotal}[w.IntN(2)]
	return w
}

// limits returns a random request in any dialect, or an empty list for a container without GPUs.
func (w *world) limits() corev1.ResourceList {
	d := w.cfg.Dialects
	units := func(most int64) int64 { return 1 + w.Int64N(most) }
	var drawn map[string]int64
	switch w.IntN(12) {
	case 0:
	case 1:
		drawn = map[string]int64{d.Alnair.Memory: units(12), d.Alnair.Compute: units(100)}
	case 2:
		drawn = map[string]int64{d.AWS.Slots: units(3)}
	case 3:
		drawn = map[string]int64{d.Volcano.Number: units(2), d.Volcano.Memory: 1024 * units(8), d.Volcano.Cores: units(100)}
	case 4:
		drawn = map[string]int64{d.MetaGPU.DeviceSharing[0].ResourceName: units(150)}
	case 5:
		drawn = map[string]int64{d.Native.Number: units(2), d.Native.Memory: 1024 * units(12)}
	case 8:
		drawn = map[string]int64{d.HAMi.Number: units(2), d.HAMi.MemoryPercentage: units(100), d.HAMi.Priority: w.Int64N(2)}
	case 9:
		drawn = map[string]int64{d.HAMi.Number: units(2)}
	case 6:
		drawn = map[string]int64{d.Native.MemoryPercentage: units(100)}
	case 7:
		drawn = map[string]int64{d.Native.Number: units(2), d.Native.Cores: units(100)}
	default:
		drawn = map[string]int64{d.Native.Memory: 1024 * units(12), d.Native.Cores: units(100)}
	}
	list := corev1.ResourceList{}
	for name, n := range drawn {
		list[corev1.ResourceName(name)] = *resource.NewQuantity(n, resource.DecimalSI)
	}
	return list
}

// resources returns random resources of a container. The API server copies limits of extended
// resources to the requests.
func (w *world) resources() corev1.ResourceRequirements {
	limits := w.limits()
	return corev1.ResourceRequirements{Limits: limits, Requests: limits}
}

func (w *world) pod() *corev1.Pod {
	w.pods++
	name := fmt.Sprint("pod-", w.pods)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), ResourceVersion: "1"}}
	if w.IntN(3) == 0 {
		key := []string{choice.UseUUID, choice.NoUseUUID, "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid", "volcano.sh/vgpu-use-gpuuuid"}[w.IntN(5)]
		pod.Annotations = map[string]string{key: fmt.Sprintf("GPU-node-%d-%d,GPU-node-1-0", w.IntN(3), w.IntN(4))}
	}
	if w.IntN(4) == 0 {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, choice.Policy, []string{config.PlaceBinpack, config.PlaceSpread}[w.IntN(2)])
	}
	always := corev1.ContainerRestartPolicyAlways
	for i := range w.IntN(3) {
		c := corev1.Container{Name: fmt.Sprint("init-", i), Resources: w.resources()}
		if w.IntN(3) == 0 {
			c.RestartPolicy = &always
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	}
	for i := range 1 + w.IntN(2) {
		pod.Spec.Containers = append(pod.Spec.Containers,
			corev1.Container{Name: fmt.Sprint("app-", i), Resources: w.resources()})
	}
	return pod
}

// member is a node in the views of the scheduler and of the node's agent.
type member struct {
	info   *framework.NodeInfo
	gpus   []gpu.GPU
	ledger *placement.Ledger
	pods   []*corev1.Pod
	// capacity contains the amounts that the node advertises.
	capacity map[string]int64
}

func (w *world) member(name string) *member {
	m := &member{info: framework.NewNodeInfo()}
	for i := range 1 + w.IntN(4) {
		m.gpus = append(m.gpus, gpu.GPU{
			UUID: fmt.Sprint("GPU-", name, "-", i), Index: i, MemoryBytes: (8 + w.Uint64N(17)) << 30, Healthy: true,
		})
	}
	m.ledger = placement.New(m.gpus, w.cfg)
	m.publish(name, w.cfg)
	return m
}

func (m *member) publish(name string, cfg config.Config) {
	all := slices.Clone(m.gpus)
	for i := range all {
		all[i].Healthy = true
	}
	m.capacity = request.Capacity(all, cfg)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Annotations: map[string]string{assign.GPUsAnnotation: assign.FormatGPUs(m.gpus)},
	}}
	node.Status.Allocatable = corev1.ResourceList{}
	for resourceName, units := range m.capacity {
		node.Status.Allocatable[corev1.ResourceName(resourceName)] = *resource.NewQuantity(units, resource.DecimalSI)
	}
	m.info.SetNode(node)
}

// admits reports whether kubelet admits another pod by the node's sums.
func (m *member) admits(pod *corev1.Pod, cfg config.Config) bool {
	for name, units := range request.Used(append(slices.Clone(m.pods), pod), cfg.Dialects) {
		if units > m.capacity[name] {
			return false
		}
	}
	return true
}

// add adds a pod to the scheduler's view.
func (m *member) add(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		t.Fatal(err)
	}
	m.info.AddPodInfo(info)
}

func (m *member) remove(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if err := m.info.RemovePod(klog.Background(), pod); err != nil {
		t.Fatal(err)
	}
}

// start starts the containers of a pod by the node's rules, and returns the UUIDs of each container.
func (m *member) start(cfg config.Config, pod *corev1.Pod) (map[string][]string, error) {
	asked, err := request.Read(pod, cfg)
	if err != nil {
		return nil, err
	}
	if asked, err = choice.Obey(asked, pod, m.gpus, cfg); err != nil {
		return nil, err
	}
	if asked, err = assign.Obey(asked, pod, m.gpus); err != nil {
		return nil, err
	}
	uuids := map[string][]string{}
	for _, c := range asked.Containers {
		if !c.Asks() {
			continue
		}
		a, err := m.ledger.Place(asked, c.Name)
		if err != nil {
			return nil, err
		}
		for _, d := range a.Devices {
			uuids[c.Name] = append(uuids[c.Name], d.UUID)
		}
	}
	return uuids, nil
}

// TestPluginAndNodeAgree draws histories of pods on several Nodes. The plugin's verdict on each pod
// must equal the verdict of the node's own ledger. No node may refuse an assignment by the plugin.
func TestPluginAndNodeAgree(t *testing.T) {
	bound, resized := 0, 0
	for seed := range uint64(150) {
		w := newWorld(seed)
		p := newPlugin(&nominating{}, w.cfg)
		if seed%3 == 0 {
			p.policy = Fragmentation
		}
		members := map[string]*member{}
		for i := range 3 {
			name := fmt.Sprint("node-", i)
			members[name] = w.member(name)
		}
		names := []string{"node-0", "node-1", "node-2"}
		for range 60 {
			name := names[w.IntN(len(names))]
			switch m := members[name]; {
			case w.IntN(15) == 0:
				w.changeHealth(m, name)
			case len(m.pods) > 0 && w.IntN(3) == 0:
				i := w.IntN(len(m.pods))
				m.remove(t, m.pods[i])
				m.ledger.Release(string(m.pods[i].UID))
				m.pods = slices.Delete(m.pods, i, i+1)
			case len(m.pods) > 0 && w.IntN(4) == 0:
				w.resize(t, p, m)
			default:
				if w.schedule(t, p, members, names) {
					bound++
				}
			}
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
		resized += w.resized
	}
	if bound < 1000 || resized < 300 {
		t.Errorf("only %d pods were bound, and %d containers resized", bound, resized)
	}
}

// resize changes the size of a container of a pod, if the node has room, and reports the size as the
// node's agent does.
func (w *world) resize(t *testing.T, p *Plugin, m *member) {
	t.Helper()
	i := w.IntN(len(m.pods))
	pod := m.pods[i]
	held := m.ledger.Pod(string(pod.UID))
	asked, err := request.Read(pod, w.cfg)
	if err != nil || len(held) == 0 {
		t.Fatalf("pod %s holds %v: %v", pod.Name, held, err)
	}
	a := held[w.IntN(len(held))]
	size := resize.Size{MemoryMiB: 1024 * w.Uint64N(16), Cores: w.Uint32N(101)}
	k := slices.IndexFunc(asked.Containers, func(c request.Container) bool { return c.Name == a.Container })
	if _, err := m.ledger.Resize(a.PodUID, a.Container, size.Apply(asked.Containers[k].Shares)); err != nil {
		return
	}
	reports := resize.Reports(pod)
	if reports == nil {
		reports = map[string]resize.Report{}
	}
	reports[a.Container] = resize.Report{Size: size}
	text, err := resize.Format(reports)
	if err != nil {
		t.Fatal(err)
	}
	changed := withAnnotation(pod, w.assigned[pod.UID])
	changed.Annotations[resize.ReportAnnotation] = text
	m.remove(t, pod)
	m.add(t, changed)
	p.reserved.Delete(pod.UID)
	m.pods[i] = changed
	w.resized++
	if got, want := p.viewOf(m.info).Ledger.Free(), m.ledger.Free(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("after a resize to %+v of container %s the plugin sees %v, and the node %v", size, a.Container, got, want)
	}
}

func (w *world) changeHealth(m *member, name string) {
	m.gpus = slices.Clone(m.gpus)
	g := &m.gpus[w.IntN(len(m.gpus))]
	g.Healthy = !g.Healthy
	m.ledger.SetGPUs(m.gpus)
	m.publish(name, w.cfg)
}

// schedule schedules a new pod, like the framework, and reports whether the pod was bound.
func (w *world) schedule(t *testing.T, p *Plugin, members map[string]*member, names []string) bool {
	t.Helper()
	pod := w.pod()
	state := framework.NewCycleState()
	_, status := p.PreFilter(t.Context(), state, pod, nil)
	asked, err := request.Read(pod, w.cfg)
	if err != nil {
		if status.Code() != fwk.UnschedulableAndUnresolvable {
			t.Errorf("an invalid request (%v) has status %v", err, status)
		}
		return false
	}
	if !asksForAny(asked) {
		if !status.IsSkip() {
			t.Errorf("a pod without GPUs has status %v", status)
		}
		return false
	}
	p.history.add(kindOf(asked, pod))
	var scores fwk.NodeScoreList
	for _, name := range names {
		m := members[name]
		here, err := choice.Obey(asked, pod, m.gpus, w.cfg)
		fits := err == nil && m.admits(pod, w.cfg) && m.ledger.Fits(here)
		if got := p.Filter(t.Context(), state, pod, m.info); got.IsSuccess() != fits {
			t.Errorf("on %s the plugin's verdict is %v, but the pod fits: %t", name, got, fits)
		}
		if !fits {
			continue
		}
		score, status := p.Score(t.Context(), state, pod, m.info)
		if !status.IsSuccess() {
			t.Errorf("no score: %v", status)
		}
		scores = append(scores, fwk.NodeScore{Name: name, Score: score})
	}
	if len(scores) == 0 {
		return false
	}
	w.bind(t, p, members[best(t, p, scores)], pod)
	return true
}

// best returns the node with the highest score after normalization.
func best(t *testing.T, p *Plugin, scores fwk.NodeScoreList) (name string) {
	t.Helper()
	if extensions := p.ScoreExtensions(); extensions != nil {
		if status := extensions.NormalizeScore(t.Context(), nil, nil, scores); !status.IsSuccess() {
			t.Error(status)
		}
	}
	most := int64(-1)
	for _, s := range scores {
		if s.Score < 0 || s.Score > fwk.MaxScore {
			t.Errorf("node %s has score %d", s.Name, s.Score)
		}
		if s.Score > most {
			name, most = s.Name, s.Score
		}
	}
	return name
}

func (w *world) bind(t *testing.T, p *Plugin, m *member, pod *corev1.Pod) {
	t.Helper()
	asked, err := request.Read(pod, w.cfg)
	if err != nil {
		t.Fatal(err)
	}
	assigned, err := p.choose(p.newAsking(asked, pod), m.info)
	if err != nil {
		t.Fatalf("no choice for a pod that fits: %v", err)
	}
	// At first, the scheduler's cache has the pod without the pod's annotation.
	p.reserved.Store(pod.UID, assigned)
	w.assigned[pod.UID] = assigned
	m.add(t, pod)
	if w.IntN(2) == 0 {
		before := p.viewOf(m.info).Ledger.Pod(string(pod.UID))
		m.remove(t, pod)
		m.add(t, withAnnotation(pod, assigned))
		p.reserved.Delete(pod.UID)
		if after := p.viewOf(m.info).Ledger.Pod(string(pod.UID)); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("the reserved pod holds %v, and the bound pod %v", before, after)
		}
	}
	given, err := m.start(w.cfg, withAnnotation(pod, assigned))
	if err != nil {
		t.Errorf("the node refuses %s: %v", assigned, err)
	}
	seen := p.viewOf(m.info).Ledger.Pod(string(pod.UID))
	for _, a := range seen {
		var uuids []string
		for _, d := range a.Devices {
			uuids = append(uuids, d.UUID)
		}
		if !slices.Equal(uuids, given[a.Container]) {
			t.Errorf("the plugin assigned %v to %s, and the node %v", uuids, a.Container, given[a.Container])
		}
	}
	if fmt.Sprint(m.ledger.Pod(string(pod.UID))) != fmt.Sprint(seen) {
		t.Errorf("the node's ledger has %v, and the plugin's %v", m.ledger.Pod(string(pod.UID)), seen)
	}
	m.pods = append(m.pods, pod)
}

func withAnnotation(pod *corev1.Pod, assigned string) *corev1.Pod {
	pod = pod.DeepCopy()
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[assign.Annotation] = assigned
	return pod
}

// TestPolicyOfAPod checks that a pod's policy chooses its GPU under every policy of the plugin.
func TestPolicyOfAPod(t *testing.T) {
	for _, policy := range []string{config.PlaceBinpack, config.PlaceSpread, Fragmentation} {
		w := newWorld(1)
		w.cfg = config.Default()
		w.cfg.Placement.Policy = policy
		p := newPlugin(&nominating{}, w.cfg)
		p.policy = policy
		m := w.member("node")
		m.gpus = nil
		for i := range 2 {
			m.gpus = append(m.gpus, gpu.GPU{UUID: fmt.Sprint("GPU-", i), Index: i, MemoryBytes: 16 << 30, Healthy: true})
		}
		m.publish("node", w.cfg)
		m.add(t, withAnnotation(one("running", 4096, 0, 1, 0), `{"app": ["GPU-0"]}`))
		for chosen, want := range map[string]string{config.PlaceBinpack: "GPU-0", config.PlaceSpread: "GPU-1"} {
			pod := one("pod", 1024, 0, 1, 0)
			pod.Annotations = map[string]string{choice.Policy: chosen}
			p.history.add(kindOf(read(t, p, pod), pod))
			got, err := p.choose(p.newAsking(read(t, p, pod), pod), m.info)
			if err != nil || !strings.Contains(got, want) {
				t.Errorf("the plugin's policy is %s, the pod's %s: got %s, %v; want %s", policy, chosen, got, err, want)
			}
		}
	}
}

// TestNodesAreJudgedInParallel checks that the race detector finds nothing while the plugin judges
// many nodes at a time, like the framework.
func TestNodesAreJudgedInParallel(t *testing.T) {
	w := newWorld(1)
	w.cfg = config.Default()
	p := newPlugin(&nominating{}, w.cfg)
	p.policy = Fragmentation
	var members []*member
	for i := range 32 {
		members = append(members, w.member(fmt.Sprint("node-", i)))
	}
	for i := range 20 {
		pod := one(fmt.Sprint("pod-", i), 1024*(1+w.Int64N(8)), 0, 1, 0)
		p.history.add(kindOf(read(t, p, pod), pod))
		state := framework.NewCycleState()
		if _, status := p.PreFilter(t.Context(), state, pod, nil); !status.IsSuccess() {
			t.Fatal(status)
		}
		var judges sync.WaitGroup
		for _, m := range members {
			judges.Go(func() {
				if p.Filter(t.Context(), state, pod, m.info).IsSuccess() {
					if _, status := p.Score(t.Context(), state, pod, m.info); !status.IsSuccess() {
						t.Error(status)
					}
				}
			})
		}
		judges.Wait()
		chosen := members[w.IntN(len(members))]
		if assigned, err := p.choose(p.newAsking(read(t, p, pod), pod), chosen.info); err == nil {
			chosen.add(t, withAnnotation(pod, assigned))
		}
	}
}
