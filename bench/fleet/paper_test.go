// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/internal/fragmentation"
)

// smallTrace returns a small cluster of two models, and tasks like the tasks of the trace. The
// tasks request parts of a GPU, one GPU, several GPUs, or no GPU.
func smallTrace() ([]fragmentation.Node, []fragmentation.Shape) {
	r := rand.New(rand.NewPCG(7, 8))
	var nodes []fragmentation.Node
	for i := range 60 {
		n := fragmentation.Node{CPU: 96000, Memory: 400000, Model: []string{"A", "B"}[i%2]}
		n.GPUs = slices.Repeat([]fragmentation.Part{{Memory: whole}}, []int{2, 4, 8}[i%3])
		nodes = append(nodes, n)
	}
	var tasks []fragmentation.Shape
	for range 400 {
		t := fragmentation.Shape{CPU: 1000 * (1 + r.Int64N(16)), Memory: 4096 * (1 + r.Int64N(8))}
		switch r.IntN(10) {
		case 0:
		case 1, 2, 3:
			t.GPUs, t.Part.Memory = 1, whole
		case 4:
			t.GPUs, t.Part.Memory = 2<<r.IntN(3), whole
		default:
			t.GPUs, t.Part.Memory = 1, 100*(1+r.Int64N(9))
		}
		if r.IntN(5) == 0 {
			t.Models = []string{[]string{"A", "B"}[r.IntN(2)]}
		}
		tasks = append(tasks, t)
	}
	return nodes, tasks
}

// TestFillSmall checks that better policies fill a small cluster fuller.
func TestFillSmall(t *testing.T) {
	nodes, tasks := smallTrace()
	at130 := map[string]float64{}
	for _, p := range policies {
		for seed := range uint64(3) {
			r := fill(nodes, tasks, p.make, seed)
			if again := fill(nodes, tasks, p.make, seed); again.allocated != r.allocated {
				t.Errorf("%s fills %v, and then %v", p.name, r.allocated, again.allocated)
			}
			if r.allocated[0] > r.allocated[1] || r.allocated[1] > 100 {
				t.Errorf("%s fills %v", p.name, r.allocated)
			}
			at130[p.name] += r.allocated[1] / 3
		}
	}
	t.Logf("%v", at130)
	if at130["bestfit"] < at130["random"] || at130["fgd"] < at130["random"] || at130[byFragmentation] < at130["fgd"] {
		t.Errorf("the policies fill %v", at130)
	}
	if free(&nodes[0]) != 2*whole {
		t.Error("the cluster of the next filling is not empty")
	}
}

// TestTypicalTasks compares the typical tasks with the paper's description.
func TestTypicalTasks(t *testing.T) {
	task := func(cpu, memory, part int64) fragmentation.Shape {
		return fragmentation.Shape{CPU: cpu, Memory: memory, GPUs: 1, Part: fragmentation.Part{Memory: part}}
	}
	tasks := slices.Concat(slices.Repeat([]fragmentation.Shape{task(1, 10, 500), task(1, 20, 500)}, 30),
		slices.Repeat([]fragmentation.Shape{task(2, 10, 500)}, 36), slices.Repeat([]fragmentation.Shape{task(3, 10, 500)}, 4))
	got := typical(tasks)
	if len(got) != 2 || got[0].CPU != 1 || got[0].Memory != 0 || got[1].CPU != 2 || got[0].Weight < 0.599 || got[0].Weight > 0.601 {
		t.Errorf("the typical tasks are %+v", got)
	}
	if all := usual(tasks); len(all) != 4 {
		t.Errorf("the usual tasks are %+v", all)
	}
}

func TestCompare(t *testing.T) {
	of := func(at100, at130 float64, known ...float64) filled {
		return filled{List: "default", At100: at100, At130: at130, Published: known}
	}
	for want, results := range map[string]map[string]filled{
		"":                          {"random": of(86, 87, 86.3, 87.5), "bestfit": of(1, 2), "fgd": of(95, 95.4), byFragmentation: of(95, 95.4)},
		"random: 85.0 % allocated":  {"random": of(85, 87, 86.3, 87.5), "fgd": of(95, 95), byFragmentation: of(95, 95)},
		"bestfit: 94.2 % allocated": {"bestfit": of(93, 94.2, 92.9, 93.1), "fgd": of(95, 95), byFragmentation: of(95, 95)},
		"by FGD 95.00 and 95.10":    {"fgd": of(95, 95.1), byFragmentation: of(96, 95)},
		"51 µs for each node":       {byFragmentation: {PerNode: 51}},
	} {
		var all []string
		for _, err := range compare(results) {
			all = append(all, err.Error())
		}
		if got := strings.Join(all, "\n"); len(all) > 1 || !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
