// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/internal/fragmentation"
)

// policy places a task on a node. fits is false if the task fits on no node.
type policy func(task *fragmentation.Shape) (at fragmentation.Placement, fits bool)

// maker makes a policy for one filling of a cluster. The policy uses the free parts in cluster and
// in nodes, which change with each placement, and the list of tasks.
type maker func(cluster *fragmentation.Cluster, nodes []fragmentation.Node, tasks []fragmentation.Shape, random *rand.Rand) policy

// policies are the policies in the order of the table.
var policies = []struct {
	name string
	make maker
}{
	{"random", func(_ *fragmentation.Cluster, nodes []fragmentation.Node, _ []fragmentation.Shape, random *rand.Rand) policy {
		return (&byRandom{nodes, random}).place
	}},
	{"bestfit", func(_ *fragmentation.Cluster, nodes []fragmentation.Node, _ []fragmentation.Shape, _ *rand.Rand) policy {
		return bestFit(nodes)
	}},
	{"fgd", func(_ *fragmentation.Cluster, nodes []fragmentation.Node, tasks []fragmentation.Shape, _ *rand.Rand) policy {
		return (&gradientDescent{nodes, typical(tasks)}).place
	}},
	{byFragmentation, func(cluster *fragmentation.Cluster, _ []fragmentation.Node, _ []fragmentation.Shape, _ *rand.Rand) policy {
		return cluster.Choose
	}},
}

// candidates returns the GPUs of a node that have room for a task's part, and whether the task fits
// on the node.
func candidates(n *fragmentation.Node, task *fragmentation.Shape) (gpus []int, fits bool) {
	if n.CPU < task.CPU || n.Memory < task.Memory {
		return nil, false
	}
	if task.GPUs == 0 {
		return nil, true
	}
	if len(task.Models) > 0 && !slices.Contains(task.Models, n.Model) {
		return nil, false
	}
	for g, free := range n.GPUs {
		if free.Memory >= task.Part.Memory {
			gpus = append(gpus, g)
		}
	}
	return gpus, len(gpus) >= task.GPUs
}

// byRandom places tasks on random nodes and GPUs.
type byRandom struct {
	nodes  []fragmentation.Node
	random *rand.Rand
}

func (b *byRandom) place(task *fragmentation.Shape) (at fragmentation.Placement, fits bool) {
	seen := 0
	for i := range b.nodes {
		gpus, ok := candidates(&b.nodes[i], task)
		if !ok {
			continue
		}
		// Each of the nodes seen so far is chosen with the same probability.
		if seen++; b.random.IntN(seen) == 0 {
			b.random.Shuffle(len(gpus), func(g, h int) { gpus[g], gpus[h] = gpus[h], gpus[g] })
			at = fragmentation.Placement{Node: i, GPUs: gpus[:task.GPUs]}
		}
	}
	return at, seen > 0
}

// bestFit places tasks on the node with the least free capacity, and on the GPUs with the least
// free part. The capacity counts processors and GPUs, relative to the largest node.
func bestFit(nodes []fragmentation.Node) policy {
	const largestCPU, largestGPU = 128000, 8 * whole
	return func(task *fragmentation.Shape) (at fragmentation.Placement, fits bool) {
		least := math.Inf(1)
		for i := range nodes {
			gpus, ok := candidates(&nodes[i], task)
			if !ok {
				continue
			}
			left := float64(nodes[i].CPU-task.CPU)/largestCPU + float64(free(&nodes[i])-int64(task.GPUs)*task.Part.Memory)/largestGPU
			if left < least {
				least, fits = left, true
				at = fragmentation.Placement{Node: i, GPUs: fullest(&nodes[i], gpus)[:task.GPUs]}
			}
		}
		return at, fits
	}
}

func free(n *fragmentation.Node) (sum int64) {
	for _, gpu := range n.GPUs {
		sum += gpu.Memory
	}
	return sum
}

// fullest sorts GPUs by their free capacity.
func fullest(n *fragmentation.Node, gpus []int) []int {
	slices.SortStableFunc(gpus, func(g, h int) int { return cmp.Compare(n.GPUs[g].Memory, n.GPUs[h].Memory) })
	return gpus
}

// gradientDescent is the policy FGD of Weng et al., "Beware of Fragmentation: Scheduling
// GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX ATC 2023. The policy places a
// task on the GPUs where the fragmentation for the typical tasks grows least.
type gradientDescent struct {
	nodes   []fragmentation.Node
	typical []fragmentation.Usual
}

// typical returns the most frequent shapes of tasks, with their parts, which together make up 95 %
// of the tasks. As in the paper's implementation, a shape does not contain the host's memory.
func typical(tasks []fragmentation.Shape) []fragmentation.Usual {
	withoutMemory := slices.Clone(tasks)
	for i := range withoutMemory {
		withoutMemory[i].Memory = 0
	}
	all := usual(withoutMemory)
	covered := 0.0
	for i := range all {
		if covered += all[i].Weight; covered >= 0.95 {
			return all[:i+1]
		}
	}
	return all
}

// usual returns the shapes of tasks by their frequency.
func usual(tasks []fragmentation.Shape) []fragmentation.Usual {
	type key struct {
		cpu, memory int64
		gpus        int
		part        fragmentation.Part
		models      string
	}
	shapes := map[key]*fragmentation.Usual{}
	for i := range tasks {
		t := &tasks[i]
		k := key{t.CPU, t.Memory, t.GPUs, t.Part, strings.Join(t.Models, "|")}
		if shapes[k] == nil {
			shapes[k] = &fragmentation.Usual{Shape: *t}
		}
		shapes[k].Weight += 1 / float64(len(tasks))
	}
	all := make([]fragmentation.Usual, 0, len(shapes))
	for _, k := range slices.SortedFunc(maps.Keys(shapes), func(a, b key) int {
		return cmp.Or(cmp.Compare(shapes[b].Weight, shapes[a].Weight), cmp.Compare(a.cpu, b.cpu), cmp.Compare(a.memory, b.memory),
			cmp.Compare(a.gpus, b.gpus), cmp.Compare(a.part.Memory, b.part.Memory), cmp.Compare(a.models, b.models))
	}) {
		all = append(all, *shapes[k])
	}
	return all
}

func (d *gradientDescent) place(task *fragmentation.Shape) (at fragmentation.Placement, fits bool) {
	most := -1
	for i := range d.nodes {
		n := &d.nodes[i]
		gpus, ok := candidates(n, task)
		if !ok {
			continue
		}
		before := d.fragments(n)
		try := func(chosen []int) {
			after := d.after(n, task, chosen)
			// The implementation turns the change into a score between 0 and 100.
			score := int(100 / (1 + math.Exp(-(before-after)/whole)))
			if score > most {
				most, fits, at = score, true, fragmentation.Placement{Node: i, GPUs: slices.Clone(chosen)}
			}
		}
		if task.GPUs != 1 {
			try(fullest(n, gpus)[:task.GPUs])
			continue
		}
		for i, g := range gpus {
			if !slices.ContainsFunc(gpus[:i], func(h int) bool { return n.GPUs[h] == n.GPUs[g] }) {
				try(gpus[i : i+1])
			}
		}
	}
	return at, fits
}

// after returns the fragmentation of a node after a task is placed on GPUs.
func (d *gradientDescent) after(n *fragmentation.Node, task *fragmentation.Shape, gpus []int) float64 {
	then := *n
	then.GPUs = slices.Clone(n.GPUs)
	then.CPU -= task.CPU
	for _, g := range gpus {
		then.GPUs[g].Memory -= task.Part.Memory
	}
	return d.fragments(&then)
}

// fragments returns the free parts of a node's GPUs that a typical task cannot use.
func (d *gradientDescent) fragments(n *fragmentation.Node) (sum float64) {
	all := free(n)
	for k := range d.typical {
		task := &d.typical[k]
		gpus, ok := candidates(n, &task.Shape)
		useless := all
		if ok {
			for _, g := range gpus {
				useless -= n.GPUs[g].Memory
			}
		}
		sum += task.Weight * float64(useless)
	}
	return sum
}
