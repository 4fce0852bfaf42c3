// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"

	"github.com/nri-vgpu/nri-vgpu/internal/fragmentation"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// cost is the lowest cost of a shape on a node after a number of changes, with the GPUs that have
// this cost.
type cost struct {
	changes int
	gpus    []int
	value   float64
}

// newUsual returns the empty cluster for the pods of all shapes.
func (f *fleet) newUsual() *fragmentation.Cluster {
	var usual []fragmentation.Usual
	for i := range f.shapes {
		usual = append(usual, fragmentation.Usual{Shape: f.shapes[i].usual, Weight: float64(f.shapes[i].weight) / float64(f.weights)})
	}
	nodes := make([]fragmentation.Node, f.scenario.nodes)
	for i := range nodes {
		nodes[i].GPUs = slices.Repeat([]fragmentation.Part{{Memory: int64(f.memory / request.MiB), Compute: 100}}, f.gpus)
	}
	return fragmentation.New(usual, nodes)
}

// cost returns the cost of a pod on a node. A cost stays valid until the node changes, because the
// rest of the cluster changes all costs alike, and slowly.
func (f *fleet) cost(n *node, p *pod) cost {
	c, known := n.costs[p.shape]
	if !known || c.changes != n.changes {
		gpus, value, _ := f.usual.Cost(n.number, &p.usual)
		c = cost{n.changes, gpus, value}
		n.costs[p.shape] = c
	}
	return c
}

// prefer restricts a pod to some GPUs of a node.
func (p *pod) prefer(n *node, gpus []int) {
	var uuids []string
	for _, g := range gpus {
		uuids = append(uuids, n.gpus[g].UUID)
	}
	asking := p.asked.Containers[0]
	asking.Shares = slices.Clone(asking.Shares)
	for i := range asking.Shares {
		asking.Shares[i].GPUs = uuids
	}
	p.asked.Containers = []request.Container{asking}
}
