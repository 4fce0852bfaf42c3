// SPDX-License-Identifier: Apache-2.0

package vgpu

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/nri-vgpu/nri-vgpu/internal/fragmentation"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// kind contains a pod's requirements of a node, for the policy fragmentation. For a pod with
// several containers, the first container that requests GPUs decides the requirements of GPUs.
type kind struct {
	cpu, memory int64 // of the host: thousandths of processors, and bytes
	gpus        int
	part        request.Memory // of each GPU
	computePPM  uint32         // of each GPU
}

// kindOf returns the kind of a pod that requests GPUs.
func kindOf(asked request.Pod, pod *corev1.Pod) kind {
	host := resource.PodRequests(pod, resource.PodResourcesOptions{})
	k := kind{cpu: host.Cpu().MilliValue(), memory: host.Memory().Value()}
	for _, c := range asked.Containers {
		if !c.Asks() {
			continue
		}
		s := c.Shares[0]
		k.gpus, k.part, k.computePPM = len(c.Shares), s.Memory, s.ComputePPM
		if s.Exclusive || s.Memory.Common {
			k.part, k.computePPM = request.Memory{PPM: request.Whole}, request.Whole
		}
		break
	}
	return k
}

// on returns the shape of the kind on a node whose GPUs have this much usable memory each.
func (k kind) on(usable uint64) fragmentation.Shape {
	return fragmentation.Shape{
		CPU: k.cpu, Memory: k.memory, GPUs: k.gpus,
		Part: fragmentation.Part{Memory: int64(k.part.On(usable)), Compute: int64(k.computePPM)},
	}
}

const (
	// mostCounted bounds the number of recent pods: at mostCounted, add halves all counts.
	mostCounted = 4096
	// mostKinds bounds the number of usual kinds. covered is the fraction of the recent pods that
	// the usual kinds cover, unless more than mostKinds kinds would be necessary.
	mostKinds = 64
	covered   = 0.95
)

// history counts the kinds of the recent pods. A history is safe for concurrent use.
type history struct {
	mu     sync.Mutex
	counts map[kind]float64
	total  float64
	added  float64 // pods since the current outlook
	now    *outlook
}

func newHistory() *history {
	return &history{counts: map[kind]float64{}, now: newOutlook(1, nil)}
}

// add counts a pod.
func (h *history) add(k kind) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts[k]++
	h.total++
	h.added++
	if h.total >= mostCounted {
		h.total = 0
		for k, n := range h.counts {
			if h.counts[k] = n / 2; h.counts[k] < 0.5 {
				delete(h.counts, k)
			}
			h.total += h.counts[k]
		}
	}
}

// outlook returns the usual kinds. A new outlook replaces the current outlook when a quarter of the
// recent pods is newer than the current outlook.
func (h *history) outlook() *outlook {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.added > 0 && 4*h.added >= h.total {
		h.added = 0
		h.now = newOutlook(h.now.number+1, h.counts)
	}
	return h.now
}

// outlook contains the usual kinds of a cluster's pods, and the room of the cluster's nodes for
// these kinds. An outlook is safe for concurrent use.
type outlook struct {
	// number is unique among the outlooks of a history.
	number  uint64
	kinds   []kind
	weights []float64

	mu sync.RWMutex
	// rooms is the room of the nodes with accounts for each kind. A node counts in the state that
	// the node had when it was last scored.
	rooms []float64
	// accounts are the nodes' accounts, by the node's name.
	accounts map[string]account
	// usual contains the kinds' shapes on nodes with GPUs of one size, by the GPUs' usable memory.
	usual map[uint64][]fragmentation.Usual
}

// account is a node's account for one generation of its NodeInfo.
type account struct {
	*fragmentation.Account
	generation int64
	usable     uint64 // of each GPU
	uuids      []string
}

func newOutlook(number uint64, counts map[kind]float64) *outlook {
	o := &outlook{number: number, accounts: map[string]account{}, usual: map[uint64][]fragmentation.Usual{}}
	byCount := slices.SortedFunc(maps.Keys(counts), func(a, b kind) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a.gpus, b.gpus), cmp.Compare(a.computePPM, b.computePPM),
			cmp.Compare(a.part.Bytes, b.part.Bytes), cmp.Compare(a.part.PPM, b.part.PPM), cmp.Compare(a.part.GiB, b.part.GiB),
			cmp.Compare(a.cpu, b.cpu), cmp.Compare(a.memory, b.memory))
	})
	var total, sum float64
	for _, n := range counts {
		total += n
	}
	for _, k := range byCount[:min(len(byCount), mostKinds)] {
		o.kinds, o.weights = append(o.kinds, k), append(o.weights, counts[k]/total)
		if sum += counts[k]; sum >= covered*total {
			break
		}
	}
	o.rooms = make([]float64, len(o.kinds))
	return o
}

// account returns the account of a node. If the known account has another generation, account
// replaces it.
func (o *outlook) account(v *view, info fwk.NodeInfo) account {
	name := info.Node().Name
	o.mu.RLock()
	known, ok := o.accounts[name]
	o.mu.RUnlock()
	if ok && known.generation == v.generation {
		return known
	}
	opened := o.open(v, info)
	o.mu.Lock()
	defer o.mu.Unlock()
	if last, ok := o.accounts[name]; ok {
		o.count(last.Account, -1)
	}
	o.count(opened.Account, 1)
	o.accounts[name] = opened
	return opened
}

func (o *outlook) count(a *fragmentation.Account, sign float64) {
	for k := range o.rooms {
		o.rooms[k] += sign * a.Room(k)
	}
}

func (o *outlook) open(v *view, info fwk.NodeInfo) account {
	node := fragmentation.Node{
		CPU:    info.GetAllocatable().GetMilliCPU() - info.GetRequested().GetMilliCPU(),
		Memory: info.GetAllocatable().GetMemory() - info.GetRequested().GetMemory(),
	}
	opened := account{generation: v.generation}
	for _, r := range v.Ledger.Free() {
		opened.usable = max(opened.usable, r.MemoryBytes)
		opened.uuids = append(opened.uuids, r.UUID)
		node.GPUs = append(node.GPUs, partOf(r))
	}
	opened.Account = fragmentation.Open(o.usualOn(opened.usable), &node)
	return opened
}

// usualOn returns the kinds' shapes on nodes whose GPUs have this much usable memory each. All
// accounts of such nodes share the result.
func (o *outlook) usualOn(usable uint64) []fragmentation.Usual {
	o.mu.Lock()
	defer o.mu.Unlock()
	if known, ok := o.usual[usable]; ok {
		return known
	}
	usual := make([]fragmentation.Usual, len(o.kinds))
	for k := range o.kinds {
		usual[k] = fragmentation.Usual{Shape: o.kinds[k].on(usable), Weight: o.weights[k]}
	}
	o.usual[usable] = usual
	return usual
}

// partOf returns the free part of a GPU; an empty part for a GPU that accepts no further pod.
func partOf(r placement.Room) fragmentation.Part {
	if !r.Healthy || r.Exclusive || r.FreeSlots == 0 || r.MPS && r.FreeClients == 0 {
		return fragmentation.Part{}
	}
	return fragmentation.Part{Memory: int64(r.FreeMemoryBytes), Compute: int64(r.FreeComputePPM)}
}

// forget drops the account of a deleted node.
func (o *outlook) forget(node string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if last, ok := o.accounts[node]; ok {
		o.count(last.Account, -1)
		delete(o.accounts, node)
	}
}

// cost returns the cost of a pod of a kind on a node, and the UUIDs of the GPUs with the least
// cost. The cost is relative to the room of a mean node. Unlike the room of all nodes, the mean
// does not grow as more nodes get accounts. If the free parts of the GPUs have no room for the pod,
// cost returns no GPUs.
func (o *outlook) cost(a account, k kind) (cost float64, uuids []string) {
	shape := k.on(a.usable)
	o.mu.RLock()
	defer o.mu.RUnlock()
	gpus, cost, fits := a.Cost(&shape, o.rooms)
	if !fits {
		return 0, nil
	}
	for _, g := range gpus {
		uuids = append(uuids, a.uuids[g])
	}
	return cost * float64(max(len(o.accounts), 1)), uuids
}
