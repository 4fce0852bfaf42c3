// SPDX-License-Identifier: Apache-2.0

// Package fragmentation chooses the node and the GPUs of a pod so that the cluster keeps room for
// the pods that it usually gets.
//
// The room of a node for a shape of pods is the number of further pods of that shape that fit
// there. The cost of a placement is the part that the placement takes of the cluster's room, summed
// over the usual shapes. The best placement has the least cost. docs/decisions/0038 explains the
// choice.
package fragmentation

import (
	"cmp"
	"slices"
)

// Part is a part of a GPU, or the free part of a GPU. The caller chooses the units, which are the
// same for all parts.
type Part struct{ Memory, Compute int64 }

// Shape contains the resources that a pod needs of a node.
type Shape struct {
	CPU, Memory int64 // of the host, in the caller's units
	// GPUs is the number of GPUs, each with a Part; 0 for a pod without GPUs.
	GPUs int
	Part Part
	// Models are the allowed models of GPUs; empty: all.
	Models []string
}

// Usual is a shape of pods that the cluster usually gets.
type Usual struct {
	Shape
	// Weight is the fraction of all pods that have the shape.
	Weight float64
}

// Node is the free capacity of a node.
type Node struct {
	CPU, Memory int64
	Model       string
	GPUs        []Part
}

// Placement is the place of a pod: the GPUs of a node, by index.
type Placement struct {
	Node int
	GPUs []int
}

// Cluster is the free capacity of a cluster and its room for the usual pods. A Cluster is not safe
// for concurrent use.
type Cluster struct {
	usual []Usual
	nodes []*Account
	// room is the cluster's room for each usual shape.
	room []float64
}

// Account is a node and its room for each usual shape.
type Account struct {
	Node
	usual []Usual
	rooms []room
}

// room is a node's room for one shape.
type room struct {
	// parts counts the shape's parts that fit in the node's GPUs, and gpus the GPUs with room for a
	// part.
	parts, gpus int64
	pods        float64
}

// New returns a cluster with these nodes that expects these usual pods. New ignores usual pods
// without GPUs: no placement of GPUs changes their room.
func New(usual []Usual, nodes []Node) *Cluster {
	usual = slices.DeleteFunc(slices.Clone(usual), func(u Usual) bool { return u.GPUs == 0 })
	c := &Cluster{usual: usual, room: make([]float64, len(usual))}
	for i := range nodes {
		a := Open(usual, &nodes[i])
		c.nodes = append(c.nodes, a)
		for k := range usual {
			c.room[k] += a.Room(k)
		}
	}
	return c
}

// Open returns the account of a node for usual shapes that need GPUs.
func Open(usual []Usual, n *Node) *Account {
	a := &Account{Node: *n, usual: usual, rooms: make([]room, len(usual))}
	a.GPUs = slices.Clone(n.GPUs)
	for k := range a.rooms {
		shape := &a.usual[k].Shape
		for _, free := range a.GPUs {
			a.rooms[k].add(shape.Part.in(free), 1)
		}
		a.rooms[k].pods = a.podsOf(shape, a.rooms[k], a.CPU, a.Memory)
	}
	return a
}

// Room returns the number of pods of the k-th usual shape that fit on the node, with a fraction.
func (a *Account) Room(k int) float64 { return a.rooms[k].pods }

// in returns the number of times that a part fits in the free part of a GPU. An empty part fits
// once.
func (p Part) in(free Part) int64 {
	switch {
	case p.Memory == 0 && p.Compute == 0:
		return 1
	case p.Compute == 0:
		return free.Memory / p.Memory
	case p.Memory == 0:
		return free.Compute / p.Compute
	}
	return min(free.Memory/p.Memory, free.Compute/p.Compute)
}

func (p Part) minus(q Part) Part { return Part{p.Memory - q.Memory, p.Compute - q.Compute} }

func (p Part) times(n int64) Part { return Part{p.Memory * n, p.Compute * n} }

// add counts n GPUs in which that many parts fit each.
func (r *room) add(parts, n int64) {
	r.parts += n * parts
	if parts > 0 {
		r.gpus += n
	}
}

// podsOf returns the number of pods of a shape that fit in the GPUs' room r and the host's
// resources. Unused processors and memory of the host count as a fraction of a pod. If no whole pod
// fits, podsOf returns 0.
func (n *Node) podsOf(s *Shape, r room, cpu, memory int64) float64 {
	if r.gpus < int64(s.GPUs) || cpu < s.CPU || memory < s.Memory || !s.allows(n.Model) {
		return 0
	}
	pods := float64(r.parts)
	if s.GPUs > 1 {
		pods /= float64(s.GPUs)
	}
	if s.CPU > 0 {
		pods = min(pods, float64(cpu)/float64(s.CPU))
	}
	if s.Memory > 0 {
		pods = min(pods, float64(memory)/float64(s.Memory))
	}
	return pods
}

func (s *Shape) allows(model string) bool {
	return s.GPUs == 0 || len(s.Models) == 0 || slices.Contains(s.Models, model)
}

// Choose returns the placement with the least cost for a pod, and whether the pod fits on any node.
// Among placements of equal cost, Choose returns the first.
func (c *Cluster) Choose(pod *Shape) (best Placement, fits bool) {
	var least float64
	for i := range c.nodes {
		gpus, cost, ok := c.Cost(i, pod)
		if ok && (!fits || cost < least) {
			best, least, fits = Placement{i, gpus}, cost, true
		}
	}
	return best, fits
}

// Cost returns the GPUs of a node with the least cost for a pod, their cost, and whether the pod
// fits on the node.
func (c *Cluster) Cost(node int, pod *Shape) (gpus []int, cost float64, fits bool) {
	return c.nodes[node].Cost(pod, c.room)
}

// Cost returns the GPUs of the node with the least cost for a pod, their cost, and whether the pod
// fits on the node. all is the cluster's room for each usual shape.
func (a *Account) Cost(pod *Shape, all []float64) (gpus []int, cost float64, fits bool) {
	if a.CPU < pod.CPU || a.Memory < pod.Memory || !pod.allows(a.Model) {
		return nil, 0, false
	}
	if pod.GPUs == 1 {
		return a.cheapest(pod, all)
	}
	if gpus, fits = a.fullest(pod); fits {
		cost = a.CostOf(pod, gpus, all)
	}
	return gpus, cost, fits
}

// cheapest returns the GPU with the least cost for a pod that needs one GPU.
func (a *Account) cheapest(pod *Shape, all []float64) (gpus []int, least float64, fits bool) {
	var one [1]int
	for g, free := range a.GPUs {
		if pod.Part.in(free) == 0 || slices.Contains(a.GPUs[:g], free) {
			continue
		}
		one[0] = g
		if cost := a.CostOf(pod, one[:], all); !fits || cost < least {
			gpus, least, fits = []int{g}, cost, true
		}
	}
	return gpus, least, fits
}

// fullest returns as many GPUs as a pod needs. fullest prefers the GPUs with the least free memory,
// and among GPUs with equal free memory the GPUs with the least free compute time.
func (a *Account) fullest(pod *Shape) (gpus []int, fits bool) {
	for g, free := range a.GPUs {
		if pod.Part.in(free) > 0 {
			gpus = append(gpus, g)
		}
	}
	if len(gpus) < pod.GPUs {
		return nil, false
	}
	slices.SortStableFunc(gpus, func(g, h int) int {
		return cmp.Or(cmp.Compare(a.GPUs[g].Memory, a.GPUs[h].Memory), cmp.Compare(a.GPUs[g].Compute, a.GPUs[h].Compute))
	})
	return gpus[:pod.GPUs], true
}

// CostOf returns the cost of a placement of a pod on GPUs of the node. all is the cluster's room
// for each usual shape.
func (a *Account) CostOf(pod *Shape, gpus []int, all []float64) (cost float64) {
	for k := range a.usual {
		before := a.rooms[k]
		if before.pods == 0 || all[k] <= 0 {
			continue
		}
		after := a.without(&a.usual[k].Shape, before, pod, gpus, 1)
		cost += a.usual[k].Weight * (before.pods - after.pods) / all[k]
	}
	return cost
}

// without returns the room for a shape after n placements of a pod on GPUs of the node. r is the
// room before the placements.
func (a *Account) without(s *Shape, r room, pod *Shape, gpus []int, n int64) room {
	for _, g := range gpus {
		free := a.GPUs[g]
		r.add(s.Part.in(free), -1)
		r.add(s.Part.in(free.minus(pod.Part.times(n))), 1)
	}
	r.pods = a.podsOf(s, r, a.CPU-n*pod.CPU, a.Memory-n*pod.Memory)
	return r
}

// Add subtracts a pod's part from the free capacity.
func (c *Cluster) Add(p Placement, pod *Shape) { c.apply(p, pod, 1) }

// Remove adds a pod's part to the free capacity.
func (c *Cluster) Remove(p Placement, pod *Shape) { c.apply(p, pod, -1) }

func (c *Cluster) apply(p Placement, pod *Shape, n int64) {
	a := c.nodes[p.Node]
	for k := range c.usual {
		after := a.without(&c.usual[k].Shape, a.rooms[k], pod, p.GPUs, n)
		c.room[k] += after.pods - a.rooms[k].pods
		a.rooms[k] = after
	}
	for _, g := range p.GPUs {
		a.GPUs[g] = a.GPUs[g].minus(pod.Part.times(n))
	}
	a.CPU -= n * pod.CPU
	a.Memory -= n * pod.Memory
}

// Free returns the free capacity of a node.
func (c *Cluster) Free(node int) Node {
	n := c.nodes[node].Node
	n.GPUs = slices.Clone(n.GPUs)
	return n
}
