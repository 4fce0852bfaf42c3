// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// node is a simulated node. node consists of the agent's ledger of the GPUs, and the Node object as
// the scheduler knows the Node.
type node struct {
	number int
	gpus   []gpu.GPU
	cfg    config.Config
	ledger *placement.Ledger
	// changes counts the changes of the ledger, and verdicts contains the planner's verdicts by
	// shape.
	changes  int
	verdicts map[*shape]verdict
	// costs are the costs of fragmentation, by shape.
	costs map[*shape]cost

	// bound are the pods of the API server that are bound to the node and have not ended, in the
	// order of their bindings.
	bound []*pod
	// resources are the names of the counted resources. requested is the amount of each resource
	// that the bound pods request, and capacity is the amount that the Node offers.
	resources           []string
	requested, capacity []int64
	// rooms are the rooms that the labels of the Node contain. turns is the number of pods that the
	// scheduler may bind to the node. If rooms is nil, turns has no effect.
	rooms request.Rooms
	turns int
	// patch is the time at which the next patch of the Node arrives, or 0 if no patch is pending.
	patch time.Duration
}

// verdict records whether the planner found GPUs for a shape after a number of changes.
type verdict struct {
	changes int
	fits    bool
}

func newNode(number, gpus int, memory uint64, cfg config.Config, resources []string) *node {
	n := &node{
		number: number, cfg: cfg, verdicts: map[*shape]verdict{}, costs: map[*shape]cost{},
		resources: resources, requested: make([]int64, len(resources)),
	}
	for i := range gpus {
		n.gpus = append(n.gpus, gpu.GPU{UUID: fmt.Sprintf("GPU-%d-%d", number, i), Index: i, Minor: i, MemoryBytes: memory, Healthy: true})
	}
	n.ledger = placement.New(n.gpus, cfg)
	return n
}

// bind records that the scheduler bound a pod to the node.
func (n *node) bind(p *pod) {
	n.bound = append(n.bound, p)
	for i, units := range p.units {
		n.requested[i] += units
	}
}

// end records that a pod has ended.
func (n *node) end(p *pod) {
	n.bound = slices.DeleteFunc(n.bound, func(q *pod) bool { return q == p })
	for i, units := range p.units {
		n.requested[i] -= units
	}
	n.ledger.Release(p.asked.UID)
	n.changes++
}

// place asks the agent for the GPUs of a bound pod, and returns the indices of the GPUs.
func (n *node) place(p *pod) (gpus []int, err error) {
	given, err := n.ledger.Place(p.asked, container)
	n.changes++
	for _, d := range given.Devices {
		gpus = append(gpus, slices.IndexFunc(n.gpus, func(g gpu.GPU) bool { return g.UUID == d.UUID }))
	}
	return gpus, err
}

// hasRoom reports whether the planner finds GPUs for a pod.
func (n *node) hasRoom(p *pod) bool {
	v, known := n.verdicts[p.shape]
	if !known || v.changes != n.changes {
		v = verdict{n.changes, n.ledger.Fits(p.shape.asked)}
		n.verdicts[p.shape] = v
	}
	return v.fits
}

// left returns the part of each GPU that remains free after the bound pods without a container have
// their GPUs.
func (n *node) left() map[string]request.Left {
	var coming []request.Pod
	for _, p := range n.bound {
		if !n.ledger.Holds(p.asked.UID) {
			coming = append(coming, p.asked)
		}
	}
	return n.ledger.Left(coming)
}

// offerSums offers the amounts that the node's pods use, and all free capacity of the node's GPUs.
func (n *node) offerSums() { n.offer(n.left()) }

func (n *node) offer(left map[string]request.Left) {
	free := request.Free(n.gpus, left, n.cfg)
	n.capacity = make([]int64, len(n.resources))
	for i, name := range n.resources {
		n.capacity[i] = n.requested[i] + free[name]
	}
}

// offerFit offers the sums, a turn for one more pod, and the rooms of the node's GPUs.
func (n *node) offerFit() {
	left := n.left()
	n.offer(left)
	n.rooms = request.RoomsOf(n.gpus, left, n.cfg)
	n.turns = len(n.bound) + 1
}

// admits reports whether the stock scheduler finds room for a pod by the sums of the resources. If
// the Node has labels, admits also checks the turns and the labels.
func (n *node) admits(p *pod) bool {
	for i, units := range p.units {
		if n.requested[i]+units > n.capacity[i] {
			return false
		}
	}
	return n.rooms == nil || len(n.bound) < n.turns && n.rooms.Fits(p.gpus, p.room)
}

// filled returns the used fraction of the node's capacity with a pod, as NodeResourcesFit scores
// nodes. The fraction, from 0 to 1, is the mean over the resources that the pod requests.
func (n *node) filled(p *pod) float64 {
	sum, asked := 0.0, 0.0
	for i, units := range p.units {
		if units > 0 {
			sum += float64(n.requested[i]+units) / float64(n.capacity[i])
			asked++
		}
	}
	return sum / asked
}
