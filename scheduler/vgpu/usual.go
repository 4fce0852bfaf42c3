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

// kind is what a pod needs of a node, for the policy fragmentation. The needs of a pod with several
// containers are those of the first container that asks for GPUs.
type kind struct {
	cpu, memory int64 // of the host: thousandths of processors, and bytes
	gpus        int
	part        request.Memory // of each GPU
	computePPM  uint32         // of each GPU
}

// kindOf returns the kind of a pod that asks for GPUs.
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

// on returns the shape of the kind on a node whose GPUs have so much usable memory.
func (k kind) on(usable uint64) fragmentation.Shape {
	return fragmentation.Shape{
		CPU: k.cpu, Memory: k.memory, GPUs: k.gpus,
		Part: fragmentation.Part{Memory: int64(k.part.On(usable)), Compute: int64(k.computePPM)},
	}
}

const (
	// mostCounted bounds the pods that count as recent: at this number all counts are halved.
	mostCounted = 4096
	// mostKinds bounds the kinds that count as usual, and covered is the part of the recent pods that
	// the usual kinds cover, if there are not too many.
	mostKinds = 64
	covered   = 0.95
)

// history counts the kinds of the recent pods. A history is safe for concurrent use.
type history struct {
	mu     sync.Mutex
	counts map[kind]float64
	total  float64
	added  float64 // since the current outlook
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

// outlook returns the usual kinds. A new outlook replaces the last one when a quarter of the recent pods
// is newer.
func (h *history) outlook() *outlook {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.added > 0 && 4*h.added >= h.total {
		h.added = 0
		h.now = newOutlook(h.now.number+1, h.counts)
	}
	return h.now
}

// outlook is the kinds of pods that a cluster usually gets, and the room of its nodes for them. An
// outlook is safe for concurrent use.
type outlook struct {
	// number is unique in a history.
	number  uint64
	kinds   []kind
	weights []float64

	mu sync.RWMutex
	// rooms is the room of the nodes with accounts for each kind. A node counts as it was when it was
	// scored last.
	rooms []float64
	// accounts are by the node's name.
	accounts map[string]account
	// usual are the kinds on nodes with GPUs of one size, by the size.
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

// account returns the account of a node, and replaces an account of another generation.
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

// usualOn returns the kinds on nodes whose GPUs have so much usable memory. All accounts of such nodes
// share the result.
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

// partOf returns the free part of a GPU.
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

// cost returns the room that a pod of a kind takes on a node, as a part of a mean node's room, and the
// UUIDs of the GPUs where the pod takes least. A mean does not grow as more nodes get accounts, unlike a
// sum. If the free parts of the GPUs have no room for the pod, cost returns no GPUs.
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
