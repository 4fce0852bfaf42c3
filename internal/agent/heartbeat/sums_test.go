// SPDX-License-Identifier: Apache-2.0

package heartbeat

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/nodestatus"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// These constants are the default names of the resources.
const (
	number         = "nri-vgpu.io/vgpu-number"
	memory         = testMemory
	hamiNumber     = "nvidia.com/gpu"
	hamiMemory     = "nvidia.com/gpumem"
	hamiPriority   = "nvidia.com/priority"
	percent        = "nri-vgpu.io/vgpu-memory-percentage"
	cores          = "nri-vgpu.io/vgpu-cores"
	alnairMemory   = "alnair/vgpu-memory"
	alnairCompute  = "alnair/vgpu-compute"
	awsSlots       = "k8s.amazonaws.com/vgpu"
	volcanoNumber  = "volcano.sh/vgpu-number"
	volcanoMemory  = "volcano.sh/vgpu-memory"
	volcanoPercent = "volcano.sh/vgpu-memory-percentage"
	volcanoCores   = "volcano.sh/vgpu-cores"
	metagpu        = "cnvrg.io/metagpu"
	metagpuFirst   = "cnvrg.io/first" // the first GPU's shares
)

type units = map[string]int64

// podAsking returns a pod with one container for each element.
func podAsking(uid string, containers ...units) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Name: uid, Namespace: "default"}}
	for i, asked := range containers {
		limits := corev1.ResourceList{}
		for name, n := range asked {
			limits[corev1.ResourceName(name)] = *resource.NewQuantity(n, resource.DecimalSI)
		}
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
			Name: fmt.Sprint("c", i), Resources: corev1.ResourceRequirements{Limits: limits},
		})
	}
	return pod
}

// site is a node with its agent, and a scheduler that only reads the Node.
type site struct {
	*testing.T
	*node
	heartbeat *Heartbeat
	cfg       config.Config
}

func newSite(t *testing.T, cfg config.Config, gpus []gpu.GPU) *site {
	t.Helper()
	n := &node{gpus: gpus, synced: true, registered: true}
	agent := New(Options{
		Config: cfg, Inventory: n, Ledger: placement.New(gpus, cfg), Pods: n, Plugin: n, Events: n,
		Log: slog.New(slog.DiscardHandler),
	})
	return &site{T: t, node: n, heartbeat: agent, cfg: cfg}
}

// advertised returns the resources of the Node as the agent's report and the patcher set them.
func (s *site) advertised() units {
	now := time.Now()
	report := nodereport.Report{Heartbeat: now, PluginRegistered: true, GPUs: s.gpus, Sums: s.heartbeat.sums(s.gpus)}
	desired, _ := nodestatus.Desired(nodestatus.Observation{Report: &report, Alive: now}, s.cfg, nil, time.Minute, now)
	return desired
}

// used sums up the requests of pods with app containers, as the scheduler does.
func (s *site) used() units {
	sum := units{}
	for _, pod := range s.pods {
		if pod.Status.Phase == corev1.PodSucceeded {
			continue
		}
		for _, c := range pod.Spec.Containers {
			for name, q := range c.Resources.Limits {
				sum[string(name)] += q.Value()
			}
		}
	}
	return sum
}

// schedule binds a pod to the node if the pod fits by the node's sums.
func (s *site) schedule(pod *corev1.Pod) bool {
	has, used := s.advertised(), s.used()
	for _, c := range pod.Spec.Containers {
		for name, q := range c.Resources.Limits {
			if used[string(name)] += q.Value(); used[string(name)] > has[string(name)] {
				return false
			}
		}
	}
	s.pods = append(s.pods, pod)
	return true
}

// start places a pod as the runtime's request does.
func (s *site) start(pod *corev1.Pod) error {
	asked, err := request.FromPod(pod, s.cfg.Dialects)
	if err != nil {
		return err
	}
	_, err = s.heartbeat.Ledger.Place(asked, "c0")
	return err
}

func (s *site) remove(pod *corev1.Pod) {
	s.pods = slices.DeleteFunc(s.pods, func(p *corev1.Pod) bool { return p == pod })
	s.heartbeat.Ledger.Release(string(pod.UID))
}

func twoGPUs() []gpu.GPU {
	return []gpu.GPU{
		{UUID: "GPU-0", MemoryBytes: 16 << 30, Healthy: true},
		{UUID: "GPU-1", Index: 1, MemoryBytes: 16 << 30, Healthy: true},
	}
}

func TestWhatOneDialectTakesTheOthersNoLongerAdvertise(t *testing.T) {
	all := units{
		number: 20, memory: 32768, cores: 200, alnairMemory: 32, alnairCompute: 200, awsSlots: 20, metagpu: 200,
		volcanoNumber: 20, volcanoMemory: 32768, volcanoPercent: 200, volcanoCores: 200, percent: 200,
	}
	with := func(changes units) units {
		changed := units{}
		for name, n := range all {
			changed[name] = n
			if m, ok := changes[name]; ok {
				changed[name] = m
			}
		}
		changed[percent] = changed[volcanoPercent] // no pod names either
		return changed
	}
	tests := []struct {
		name  string
		asked []units // by container
		want  units
	}{
		{"nobody", nil, all},
		{"ours: its own sums stay", []units{{number: 1, memory: 4096, cores: 25}}, with(units{
			alnairMemory: 28, alnairCompute: 175, awsSlots: 17, metagpu: 175,
			volcanoNumber: 19, volcanoMemory: 28672, volcanoPercent: 175, volcanoCores: 175,
		})},
		{"memory alone takes a slot; nobody can have all of the GPU's time alone", []units{{memory: 8192}}, with(units{
			number: 19, alnairMemory: 24, awsSlots: 15, metagpu: 150,
			volcanoNumber: 19, volcanoMemory: 24576, volcanoPercent: 150, volcanoCores: 199,
		})},
		{"several GPUs take the memory of each", []units{{volcanoNumber: 2, volcanoMemory: 3072, volcanoCores: 50}}, with(units{
			number: 18, memory: 26624, cores: 100, alnairMemory: 26, alnairCompute: 100, awsSlots: 10, metagpu: 100,
			volcanoMemory: 29696, volcanoPercent: 162, volcanoCores: 150,
		})},
		{"AWS", []units{{awsSlots: 3}}, with(units{
			memory: 27852, cores: 170, alnairMemory: 27, alnairCompute: 170, metagpu: 170,
			volcanoMemory: 27852, volcanoPercent: 170, volcanoCores: 170,
		})},
		{"Alnair without memory of its own", []units{{alnairCompute: 30}}, with(units{
			number: 10, memory: 16384, cores: 100, alnairMemory: 16, awsSlots: 10, metagpu: 100,
			volcanoNumber: 10, volcanoMemory: 16384, volcanoPercent: 100, volcanoCores: 100,
		})},
		{"a whole GPU and half of another", []units{{metagpu: 150}}, with(units{
			number: 10, memory: 8192, cores: 50, alnairMemory: 8, alnairCompute: 50, awsSlots: 5,
			volcanoNumber: 10, volcanoMemory: 8192, volcanoPercent: 50, volcanoCores: 50,
		})},
		{"a GPU that a container has alone", []units{{volcanoMemory: 4096, volcanoCores: 100}}, with(units{
			number: 10, memory: 16384, cores: 100, alnairMemory: 16, alnairCompute: 100, awsSlots: 10, metagpu: 100,
			volcanoNumber: 10, volcanoMemory: 20480, volcanoPercent: 100,
		})},
		{"two dialects in one pod", []units{{awsSlots: 5}, {metagpu: 50}}, with(units{
			number: 10, memory: 16384, cores: 100, alnairMemory: 16, alnairCompute: 100, awsSlots: 15, metagpu: 150,
			volcanoNumber: 10, volcanoMemory: 16384, volcanoPercent: 100, volcanoCores: 100,
		})},
		{"two dialects in one container are refused, and take nothing of others", []units{{awsSlots: 5, metagpu: 50}}, all},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t, config.Default(), twoGPUs())
			if tt.asked != nil {
				pod := podAsking("p", tt.asked...)
				if !s.schedule(pod) {
					t.Fatal("the scheduler finds no room")
				}
				coming := s.advertised()
				if diff := cmp.Diff(tt.want, coming); diff != "" {
					t.Errorf("before the pod is created (-want +got):\n%s", diff)
				}
				_ = s.start(pod) // the last pod is refused
			}
			if diff := cmp.Diff(tt.want, s.advertised()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestClientsBoundWhatIsAdvertised checks that the node advertises no more slots than the
// Multi-Process Service serves containers, whatever the containers request.
func TestClientsBoundWhatIsAdvertised(t *testing.T) {
	cfg := config.Default()
	cfg.Sharing.Method = config.ShareByMPS
	cfg.Sharing.MPS.ClientsPerGPU, cfg.Sharing.MPS.ClientsPerContainer = 6, 2
	s := newSite(t, cfg, twoGPUs()[:1])
	for i, want := range []units{{number: 3, awsSlots: 10}, {number: 2, awsSlots: 10}, {number: 1, awsSlots: 10}, {awsSlots: 3}} {
		has := s.advertised()
		if has[number] != want[number] || has[awsSlots] != want[awsSlots] {
			t.Errorf("with %d containers %v are advertised, want %v", i, has, want)
		}
		if i == 3 {
			break
		}
		pod := podAsking(fmt.Sprint("p", i), units{awsSlots: 1})
		if !s.schedule(pod) {
			t.Fatal("the scheduler finds no room")
		}
		if err := s.start(pod); err != nil {
			t.Fatal(err)
		}
	}
}

// randomPod returns a pod with one random dialect in each container.
func randomPod(r *rand.Rand, uid string) *corev1.Pod {
	small := func(n int64) int64 { return 1 + r.Int64N(n)*r.Int64N(n)/n }
	ask := func() units {
		switch r.IntN(15) {
		case 0:
			return units{memory: small(24 << 10)}
		case 1:
			return units{number: 1, memory: small(24 << 10), cores: small(100)}
		case 2:
			return units{number: 1 + r.Int64N(3), memory: small(8 << 10)}
		case 3:
			return units{alnairMemory: small(24), alnairCompute: small(100)}
		case 4:
			return units{alnairMemory: small(24)}
		case 5:
			return units{alnairCompute: small(100)}
		case 6:
			return units{awsSlots: small(12)}
		case 7:
			return units{volcanoNumber: 1, volcanoPercent: small(100), volcanoCores: small(100)}
		case 8:
			return units{volcanoNumber: 1 + r.Int64N(2), volcanoMemory: small(16 << 10), volcanoCores: small(100)}
		case 9:
			return units{metagpuFirst: small(7)}
		case 12:
			return units{hamiNumber: 1 + r.Int64N(2), hamiMemory: small(16 << 10), hamiPriority: r.Int64N(2)}
		case 13:
			return units{hamiNumber: 1}
		case 10:
			return units{number: 1 + r.Int64N(2), cores: small(100)}
		case 11:
			return units{percent: small(100), cores: small(100)}
		}
		return units{metagpu: small(150)}
	}
	containers := []units{ask()}
	if r.IntN(5) == 0 {
		containers = append(containers, ask())
	}
	return podAsking(uid, containers...)
}

func randomSite(t *testing.T, r *rand.Rand) *site {
	cfg := config.Default()
	cfg.Node.SlotsPerGPU = 1 + r.IntN(12)
	cfg.Dialects.HAMi.Enabled = true
	cfg.Node.ReservedMemoryMiB = r.Uint64N(2) * 700
	cfg.Dialects.AWS.SlotsPerGPU = 1 + r.IntN(48)
	cfg.Dialects.MetaGPU.AllowSpread = r.IntN(2) == 0
	cfg.Dialects.MetaGPU.DeviceSharing = append(cfg.Dialects.MetaGPU.DeviceSharing,
		config.DeviceSharing{ResourceName: metagpuFirst, SharesPerGPU: 7, UUIDs: []string{"GPU-0"}})
	if r.IntN(2) == 0 {
		cfg.Placement.Policy = config.PlaceSpread
	}
	var gpus []gpu.GPU
	for i := range 1 + r.IntN(8) {
		gpus = append(gpus, gpu.GPU{
			UUID: fmt.Sprint("GPU-", i), Index: i, MemoryBytes: 8<<30 + r.Uint64N(40<<30), Healthy: r.IntN(8) > 0,
		})
	}
	return newSite(t, cfg, gpus)
}

// step causes one random event.
func (s *site) step(r *rand.Rand, uid string) {
	some := func() *corev1.Pod { return s.pods[r.IntN(len(s.pods))] }
	switch {
	case len(s.pods) == 0 || r.IntN(2) == 0:
		if pod := randomPod(r, uid); s.schedule(pod) && r.IntN(3) > 0 {
			_ = s.start(pod)
		}
	case r.IntN(3) == 0:
		_ = s.start(some()) // starts a waiting pod, or starts a pod again
	case r.IntN(4) == 0:
		some().Status.Phase = corev1.PodSucceeded // the pod's containers may run a little longer
	case r.IntN(8) == 0:
		k := r.IntN(len(s.gpus))
		s.gpus[k].Healthy = !s.gpus[k].Healthy
		s.heartbeat.Ledger.SetGPUs(s.gpus)
	default:
		s.remove(some())
	}
}

// books returns the total free capacity of the healthy GPUs, computed without the ledger.
func (s *site) books() (memory, compute uint64, slots int) {
	for _, g := range s.gpus {
		if !g.Healthy {
			continue
		}
		total := request.Usable(g, s.cfg)
		m, c, n := total, uint64(request.Whole), s.cfg.Node.SlotsPerGPU
		for _, a := range s.heartbeat.Ledger.Allocations() {
			for _, d := range a.Devices {
				switch {
				case d.UUID != g.UUID:
					continue
				case d.Exclusive:
					m, c, n = 0, 0, 0
				case d.MemoryInCommon:
					m, c = 0, c-uint64(d.ComputePPM)
				default:
					m, c, n = m-d.MemoryBytes, c-uint64(d.ComputePPM), n-d.Slots
				}
			}
		}
		memory, compute, slots = memory+m, compute+c, slots+n
	}
	return memory, compute, slots
}

// check compares the advertised resources with the books. check also claims all advertised units
// one by one on a ledger.
func (s *site) check(r *rand.Rand) {
	s.Helper()
	has, used := s.advertised(), s.used()
	free := units{}
	for name := range has {
		free[name] = has[name] - used[name]
	}
	for name := range used {
		if has[name] < used[name] {
			s.Errorf("%s: %d are advertised, and %d used", name, has[name], used[name])
		}
	}
	s.checkTotals(has, free)
	name := []string{awsSlots, metagpu, metagpuFirst, alnairMemory, number}[r.IntN(5)]
	unit := units{name: 1}
	if name == number {
		unit[memory] = 1
	}
	s.claim(name, free[name], unit)
}

func (s *site) checkTotals(has, free units) {
	s.Helper()
	memoryLeft, computeLeft, slotsLeft := s.books()
	for name, left := range map[string]uint64{
		memory: memoryLeft >> 20, alnairMemory: memoryLeft>>30 + 8, // a rounded GiB may be smaller
		cores: computeLeft / 10_000, alnairCompute: computeLeft / 10_000,
		hamiNumber: uint64(slotsLeft), hamiMemory: memoryLeft >> 20,
		number: uint64(slotsLeft), volcanoNumber: uint64(slotsLeft), volcanoMemory: memoryLeft >> 20, volcanoCores: computeLeft / 10_000,
	} {
		volcanosOne := has[name] == 1 && (name == volcanoNumber || name == volcanoMemory || name == volcanoCores)
		if uint64(free[name]) > left && !volcanosOne {
			s.Errorf("%s: the scheduler may allocate %d, and the ledger has %d", name, free[name], left)
		}
	}
}

// claim places the coming pods and then as many pods as the scheduler would send.
func (s *site) claim(name string, n int64, unit units) {
	s.Helper()
	ledger := placement.New(s.gpus, s.cfg)
	for _, a := range s.heartbeat.Ledger.Allocations() {
		if err := ledger.Restore(a); err != nil {
			s.Fatal(err)
		}
	}
	for _, pod := range s.heartbeat.coming(request.Asking(s.pods, s.cfg.Dialects), s.gpus) {
		_, _ = ledger.Place(pod, "c0") // some pods find no room
	}
	for i := range n {
		pod, err := request.FromPod(podAsking(fmt.Sprint("claim", i), unit), s.cfg.Dialects)
		if err != nil {
			s.Fatal(err)
		}
		if _, err := ledger.Place(pod, "c0"); err != nil {
			s.Errorf("%s: %d are left by the Node, and after %d: %v", name, n, i, err)
			return
		}
	}
}

// TestTheSchedulersSumsAreTrue plays random histories: pods of all dialects arrive, start late, end
// and leave, while GPUs become unhealthy and recover.
func TestTheSchedulersSumsAreTrue(t *testing.T) {
	histories, started := 15, 0
	for seed := range histories {
		r := rand.New(rand.NewPCG(uint64(seed), 6))
		s := randomSite(t, r)
		for i := range 30 {
			s.step(r, fmt.Sprint("pod", i))
			s.check(r)
			if t.Failed() {
				t.Fatalf("seed %d, step %d: %d pods, GPUs %+v", seed, i, len(s.pods), s.gpus)
			}
		}
		started += len(s.heartbeat.Ledger.Allocations())
	}
	if started < histories {
		t.Errorf("only %d containers at the end of %d histories: the test tests nothing", started, histories)
	}
}

func TestOnlyALossIsUrgent(t *testing.T) {
	told := &nodereport.Sums{Used: units{memory: 100, awsSlots: 2}, Free: units{memory: 200, awsSlots: 5}}
	for _, tt := range []struct {
		name string
		now  *nodereport.Sums
		want bool
	}{
		{"the same", told, false},
		{"more is left", &nodereport.Sums{Used: units{memory: 50}, Free: units{memory: 250, awsSlots: 7}}, false},
		{"less is left", &nodereport.Sums{Used: units{memory: 100, awsSlots: 2}, Free: units{memory: 200, awsSlots: 4}}, true},
		{"nothing is left", &nodereport.Sums{Used: units{memory: 100, awsSlots: 2}, Free: units{memory: 200}}, true},
		{"own pods use more than was reported", &nodereport.Sums{Used: units{memory: 301}, Free: told.Free}, true},
		{"pods are not known any more", nil, true},
	} {
		if got := urgent(told, tt.now); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	if urgent(nil, nil) || !urgent(nil, told) {
		t.Error("before the pods are known")
	}
}

// BenchmarkSums measures the count on a node of 8 GPUs with 500 pods, of which 50 have a part of a
// GPU. A second case adds as many coming pods as are placed on trial, all without room.
func BenchmarkSums(b *testing.B) {
	for _, crowd := range []int{0, maxComing} {
		b.Run(fmt.Sprint(crowd, " coming"), func(b *testing.B) {
			cfg := config.Default()
			var gpus []gpu.GPU
			for i := range 8 {
				gpus = append(gpus, gpu.GPU{UUID: fmt.Sprint("GPU-", i), Index: i, MemoryBytes: 80 << 30, Healthy: true})
			}
			n := &node{gpus: gpus, synced: true}
			a := New(Options{Config: cfg, Inventory: n, Ledger: placement.New(gpus, cfg), Pods: n})
			for i := range 500 {
				asked := units{}
				if i%10 == 0 {
					asked = units{memory: 8 << 10}
				}
				pod := podAsking(fmt.Sprint("pod", i), asked)
				n.pods = append(n.pods, pod)
				request, err := request.FromPod(pod, cfg.Dialects)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := a.Ledger.Place(request, "c0"); err != nil {
					b.Fatal(err)
				}
			}
			for i := range crowd {
				n.pods = append(n.pods, podAsking(fmt.Sprint("coming", i), units{number: 8, memory: 60 << 10}, units{number: 4, memory: 70 << 10}))
			}
			for b.Loop() {
				a.sums(gpus)
			}
		})
	}
}
