// SPDX-License-Identifier: Apache-2.0

package fragmentation

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// gpu returns a GPU with that much free memory, in thousandths of the GPU.
func gpu(memory int64) Part { return Part{Memory: memory} }

func usual(weight float64, shape Shape) Usual { return Usual{shape, weight} }

func TestChoose(t *testing.T) {
	half, third := Shape{GPUs: 1, Part: gpu(500)}, Shape{GPUs: 1, Part: gpu(300)}
	whole, pair := Shape{GPUs: 1, Part: gpu(1000)}, Shape{GPUs: 2, Part: gpu(1000)}
	node := func(gpus ...int64) Node {
		n := Node{CPU: 100, Memory: 100, Model: "A"}
		for _, free := range gpus {
			n.GPUs = append(n.GPUs, gpu(free))
		}
		return n
	}
	for name, tt := range map[string]struct {
		usual []Usual
		nodes []Node
		pod   Shape
		want  Placement
		fits  bool
	}{
		"nowhere":                         {nil, []Node{node(400, 400)}, half, Placement{}, false},
		"no single GPU of a sum":          {nil, []Node{node(400, 400), node(100, 500)}, half, Placement{1, []int{1}}, true},
		"the first of equals":             {nil, []Node{node(1000), node(1000)}, half, Placement{0, []int{0}}, true},
		"a whole GPU stays whole":         {[]Usual{usual(1, whole)}, []Node{node(1000, 500)}, half, Placement{0, []int{1}}, true},
		"a pair stays a pair":             {[]Usual{usual(1, pair)}, []Node{node(1000, 1000), node(1000, 0)}, whole, Placement{1, []int{0}}, true},
		"the fit that leaves a third":     {[]Usual{usual(1, third)}, []Node{node(900), node(800)}, half, Placement{1, []int{0}}, true},
		"several on the fullest that fit": {nil, []Node{node(1000, 400, 600, 500)}, Shape{GPUs: 2, Part: gpu(500)}, Placement{0, []int{3, 2}}, true},
		"several need GPUs of their own":  {nil, []Node{node(1000)}, Shape{GPUs: 2, Part: gpu(500)}, Placement{}, false},
		"a model that is allowed":         {nil, []Node{node(1000), {CPU: 9, Memory: 9, Model: "B", GPUs: []Part{gpu(1000)}}}, Shape{GPUs: 1, Part: gpu(1), Models: []string{"C", "B"}}, Placement{1, []int{0}}, true},
		"no processors":                   {nil, []Node{node(1000)}, Shape{CPU: 101, GPUs: 1, Part: gpu(1)}, Placement{}, false},
		"no host memory":                  {nil, []Node{node(1000)}, Shape{Memory: 101, GPUs: 1, Part: gpu(1)}, Placement{}, false},
		"without GPUs where none are":     {[]Usual{usual(1, Shape{CPU: 20, GPUs: 1, Part: gpu(1000)})}, []Node{node(1000), node(0)}, Shape{CPU: 90}, Placement{1, nil}, true},
		"what is usual elsewhere is free": {[]Usual{usual(1, Shape{GPUs: 1, Part: gpu(1000), Models: []string{"B"}})}, []Node{{CPU: 9, Memory: 9, Model: "B", GPUs: []Part{gpu(1000)}}, node(1000)}, half, Placement{1, []int{0}}, true},
		"the rarer pods have more room":   {[]Usual{usual(0.9, whole), usual(0.1, pair)}, []Node{node(1000, 1000), node(1000)}, whole, Placement{1, []int{0}}, true},
		"the scarce room is worth more":   {[]Usual{usual(0.5, whole), usual(0.5, Shape{CPU: 60, GPUs: 1, Part: gpu(600)})}, []Node{{CPU: 60, Memory: 9, GPUs: []Part{gpu(1000)}}, {CPU: 50, Memory: 9, GPUs: []Part{gpu(1000)}}}, half, Placement{1, []int{0}}, true},
		"compute is short, memory is not": {nil, []Node{{GPUs: []Part{{900, 10}}}, {GPUs: []Part{{400, 50}}}}, Shape{GPUs: 1, Part: Part{300, 20}}, Placement{1, []int{0}}, true},
		"memory is short, compute is not": {nil, []Node{{GPUs: []Part{{100, 90}}}, {GPUs: []Part{{400, 50}}}}, Shape{GPUs: 1, Part: Part{300, 20}}, Placement{1, []int{0}}, true},
		"compute alone":                   {nil, []Node{{GPUs: []Part{{0, 10}, {0, 20}}}}, Shape{GPUs: 1, Part: Part{0, 20}}, Placement{0, []int{1}}, true},
		"an empty cluster":                {[]Usual{usual(1, whole)}, nil, whole, Placement{}, false},
		"the first GPU of equals":         {nil, []Node{node(1000, 900)}, half, Placement{0, []int{0}}, true},
		"a usual shape without room":      {[]Usual{usual(1, Shape{GPUs: 4, Part: gpu(1000)}), usual(1, whole)}, []Node{node(1000, 500)}, half, Placement{0, []int{1}}, true},
		"usual pods without GPUs cost nothing": {[]Usual{usual(1, Shape{CPU: 10})},
			[]Node{{CPU: 100, GPUs: []Part{gpu(1000)}}, {CPU: 200, GPUs: []Part{gpu(1000)}}}, Shape{CPU: 95, GPUs: 1, Part: gpu(500)}, Placement{0, []int{0}}, true},
		"usual pods without GPUs are none": {[]Usual{usual(1, Shape{CPU: 10})}, []Node{node(1000), node(500)}, half, Placement{0, []int{0}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, fits := New(tt.usual, tt.nodes).Choose(&tt.pod)
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty()); diff != "" || fits != tt.fits {
				t.Errorf("fits: %t, want %t\n%s", fits, tt.fits, diff)
			}
		})
	}
}

// TestRoom checks the number of pods of a shape that fit on a node with two GPUs.
func TestRoom(t *testing.T) {
	n := Node{CPU: 100, Memory: 100, Model: "A", GPUs: []Part{gpu(1000), gpu(1000)}}
	for name, tt := range map[string]struct {
		shape Shape
		want  float64
	}{
		"parts of one GPU":  {Shape{GPUs: 1, Part: gpu(400)}, 4},
		"parts of two GPUs": {Shape{GPUs: 2, Part: gpu(400)}, 2},
		"three GPUs":        {Shape{GPUs: 3, Part: gpu(400)}, 0},
		"processors":        {Shape{GPUs: 1, Part: gpu(400), CPU: 80}, 1.25},
		"host memory":       {Shape{GPUs: 1, Part: gpu(400), Memory: 80}, 1.25},
		"all of the host":   {Shape{GPUs: 1, Part: gpu(400), CPU: 100, Memory: 100}, 1},
		"few processors":    {Shape{GPUs: 1, Part: gpu(400), CPU: 101}, 0},
		"little memory":     {Shape{GPUs: 1, Part: gpu(400), Memory: 101}, 0},
		"another model":     {Shape{GPUs: 1, Part: gpu(400), Models: []string{"B"}}, 0},
	} {
		if got := Open([]Usual{usual(1, tt.shape)}, &n).Room(0); got != tt.want {
			t.Errorf("%s: %v pods fit, want %v", name, got, tt.want)
		}
	}
}

// TestRemove checks that Remove restores the capacity that Add has taken.
func TestRemove(t *testing.T) {
	c := New(nil, []Node{{CPU: 8, Memory: 8, GPUs: []Part{{1000, 100}}}})
	pod := Shape{CPU: 3, Memory: 2, GPUs: 1, Part: Part{400, 30}}
	before := c.Free(0)
	at := Placement{0, []int{0}}
	c.Add(at, &pod)
	if diff := cmp.Diff(Node{CPU: 5, Memory: 6, GPUs: []Part{{600, 70}}}, c.Free(0)); diff != "" {
		t.Errorf("after Add (-want +got):\n%s", diff)
	}
	c.Remove(at, &pod)
	if diff := cmp.Diff(before, c.Free(0)); diff != "" {
		t.Errorf("after Remove (-want +got):\n%s", diff)
	}
}

// random returns a cluster and shapes of pods.
func random(r *rand.Rand) (*Cluster, []Shape) {
	part := func() Part { return Part{50 * (1 + r.Int64N(20)), 5 * r.Int64N(21)} }
	models := []string{"A", "B"}
	shapes := make([]Shape, 6)
	kinds := make([]Usual, len(shapes))
	for i := range shapes {
		shapes[i] = Shape{CPU: r.Int64N(8), Memory: r.Int64N(8), GPUs: r.IntN(4), Part: part(), Models: models[:r.IntN(3)]}
		kinds[i] = Usual{shapes[i], r.Float64()}
	}
	nodes := make([]Node, 5)
	for i := range nodes {
		nodes[i] = Node{CPU: r.Int64N(64), Memory: r.Int64N(64), Model: models[r.IntN(2)], GPUs: slices.Repeat([]Part{{1000, 100}}, r.IntN(9))}
	}
	return New(kinds, nodes), shapes
}

// TestHistoriesLeaveTheSameRoom compares the room that a history of pods leaves with the room of a
// new cluster with the same nodes.
func TestHistoriesLeaveTheSameRoom(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		c, shapes := random(r)
		type placed struct {
			at  Placement
			pod *Shape
		}
		var all []placed
		for range 100 {
			if len(all) > 0 && r.IntN(3) == 0 {
				i := r.IntN(len(all))
				c.Remove(all[i].at, all[i].pod)
				all = slices.Delete(all, i, i+1)
				continue
			}
			pod := &shapes[r.IntN(len(shapes))]
			if at, fits := c.Choose(pod); fits {
				c.Add(at, pod)
				all = append(all, placed{at, pod})
			}
		}
		var nodes []Node
		for i := range c.nodes {
			nodes = append(nodes, c.Free(i))
		}
		fresh := New(c.usual, nodes)
		for i := range c.nodes {
			if diff := cmp.Diff(fresh.nodes[i], c.nodes[i], cmp.AllowUnexported(Account{}, room{})); diff != "" {
				t.Fatalf("the history has other room:\n%s", diff)
			}
		}
		for k := range c.room {
			if math.Abs(c.room[k]-fresh.room[k]) > 1e-9 {
				t.Fatalf("the room for shape %d is %v, want %v", k, c.room[k], fresh.room[k])
			}
		}
	}
}

// TestNothingIsTakenTwice checks that no choice takes more than is free, whatever the order.
func TestNothingIsTakenTwice(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		c, shapes := random(r)
		for range 200 {
			pod := &shapes[r.IntN(len(shapes))]
			at, fits := c.Choose(pod)
			if fits != slices.ContainsFunc(c.nodes, func(a *Account) bool { return roomFor(a, pod) }) {
				t.Fatalf("a pod %+v fits: %t", pod, fits)
			}
			if !fits {
				continue
			}
			c.Add(at, pod)
			n := c.Free(at.Node)
			if n.CPU < 0 || n.Memory < 0 || slices.ContainsFunc(n.GPUs, func(p Part) bool { return p.Memory < 0 || p.Compute < 0 }) {
				t.Fatalf("the pod %+v at %+v leaves %+v", pod, at, n)
			}
			if len(at.GPUs) != pod.GPUs || len(slices.Compact(slices.Sorted(slices.Values(at.GPUs)))) != pod.GPUs {
				t.Fatalf("a pod of %d GPUs has %v", pod.GPUs, at.GPUs)
			}
		}
	}
}

// roomFor reports whether a node has room for a pod, by the definition of room.
func roomFor(a *Account, pod *Shape) bool {
	gpus := 0
	for _, free := range a.GPUs {
		if free.Memory >= pod.Part.Memory && free.Compute >= pod.Part.Compute {
			gpus++
		}
	}
	model := pod.GPUs == 0 || len(pod.Models) == 0 || slices.Contains(pod.Models, a.Model)
	return model && gpus >= pod.GPUs && a.CPU >= pod.CPU && a.Memory >= pod.Memory
}

func BenchmarkCost(b *testing.B) {
	r := rand.New(rand.NewPCG(5, 6))
	kinds := make([]Usual, 100)
	for i := range kinds {
		kinds[i] = Usual{Shape{CPU: 1 + r.Int64N(8), Memory: 1 + r.Int64N(8), GPUs: 1, Part: Part{50 * (1 + r.Int64N(20)), 5 * r.Int64N(21)}}, 0.01}
	}
	n := Node{CPU: 100, Memory: 100}
	for g := range int64(8) {
		n.GPUs = append(n.GPUs, Part{1000 - g, 100})
	}
	c := New(kinds, []Node{n})
	b.ReportAllocs()
	for b.Loop() {
		c.Cost(0, &kinds[0].Shape)
	}
}
