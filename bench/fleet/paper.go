// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/fragmentation"
)

// demands are the demands at which the experiment of Weng et al., USENIX ATC 2023, measures. The
// experiment draws tasks from a list, with repetition, until the tasks request 130 % of the
// cluster's GPUs. The tasks arrive one by one, and no task leaves. The experiment drops tasks that
// fit nowhere. The result is the allocated part of all GPUs when the tasks have requested 100 % and
// 130 %.
var demands = [2]float64{1, 1.3}

// published contains the paper's results in percent, as means over its seeds.
var published = map[string]map[string][2]float64{
	"default":    {"random": {86.3, 87.5}, "bestfit": {92.9, 93.1}, "fgd": {95.2, 95.4}},
	"gpushare60": {"random": {82.8, 83.7}, "bestfit": {89.1, 89.4}, "fgd": {91.3, 91.4}},
	"gpuspec33":  {"random": {83.9, 86.5}, "bestfit": {80.4, 93.1}, "fgd": {87.8, 94.5}},
	"multigpu30": {"random": {86.6, 89.3}, "bestfit": {94.6, 94.7}, "fgd": {96.4, 96.5}},
}

// filling is the result of one filling of a cluster.
type filling struct {
	allocated [2]float64 // of all GPUs, in percent, at each of the demands
	// perNode is the time that the policy took for a placement, divided by the number of nodes.
	perNode time.Duration
}

// fill fills a cluster with tasks of a list by a policy.
func fill(nodes []fragmentation.Node, tasks []fragmentation.Shape, policy maker, seed uint64) filling {
	nodes = slices.Clone(nodes)
	all := int64(0)
	for i := range nodes {
		nodes[i].GPUs = slices.Clone(nodes[i].GPUs)
		all += free(&nodes[i])
	}
	cluster := fragmentation.New(usual(tasks), nodes)
	place := policy(cluster, nodes, tasks, rand.New(rand.NewPCG(seed, 0)))
	draw := rand.New(rand.NewPCG(seed, 1)) // the same tasks for each policy

	var result filling
	var spent time.Duration
	var asked, given int64
	placements := 0
	for i, demand := range demands {
		for float64(asked) < demand*float64(all) {
			task := &tasks[draw.IntN(len(tasks))]
			asked += int64(task.GPUs) * task.Part.Memory
			begin := time.Now()
			at, fits := place(task)
			spent += time.Since(begin)
			placements++
			if fits {
				given += int64(task.GPUs) * task.Part.Memory
				take(&nodes[at.Node], task, at.GPUs)
				cluster.Add(at, task)
			}
		}
		result.allocated[i] = 100 * float64(given) / float64(all)
	}
	result.perNode = spent / time.Duration(placements*len(nodes))
	return result
}

// take takes a task's part from a node's free capacity.
func take(n *fragmentation.Node, task *fragmentation.Shape, gpus []int) {
	n.CPU -= task.CPU
	n.Memory -= task.Memory
	for _, g := range gpus {
		n.GPUs[g].Memory -= task.Part.Memory
	}
}
