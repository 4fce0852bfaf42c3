// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/fragmentation"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// These constants are the times of the simulated control plane. The scheduler needs cycle for a
// pod. The runtime creates a bound pod's container, and the agent places the container, startAfter
// after the binding. The agent evicts a refused pod after evictAfter, because the kubelet retries
// twice.
const (
	cycle      = 5 * time.Millisecond
	startAfter = time.Second
	evictAfter = 30 * time.Second
)

// mode is a way in which the scheduler knows a node's free capacity.
type mode struct {
	name string
	// offer updates the capacity that the Node offers. If offer is nil, the scheduler knows the
	// nodes' ledgers.
	offer func(*node)
	// taken is the delay between a binding and the update of the Node. freed is the delay between a
	// pod's end and the update.
	taken, freed time.Duration
}

// modes are the modes. In sums, the scheduler knows the capacity that the patcher offers. In fit, the
// scheduler also knows the free capacity of single GPUs from labels, and binds one pod to a node
// between two updates. In scheduler, the scheduler knows each node's ledger.
var modes = []mode{
	{"sums", (*node).offerSums, 200 * time.Millisecond, 5 * time.Second},
	{"fit", (*node).offerFit, 200 * time.Millisecond, 200 * time.Millisecond},
	{name: "scheduler"},
}

const (
	// byFragmentation is the policy of package fragmentation, which needs the mode scheduler.
	byFragmentation = "fragmentation"
	// unscored is the default of kube-scheduler, whose scores ignore extended resources. The agents
	// use binpack.
	unscored = "unscored"
)

// scenario is the configuration of a simulation.
type scenario struct {
	mode   mode
	policy string // config.PlaceBinpack, config.PlaceSpread, byFragmentation or unscored
	sizes  []size
	nodes  int
	gpus   int           // of each node
	memory uint64        // of each GPU, in bytes
	load   float64       // the average request of a pod, in parts of the cluster
	life   time.Duration // the mean life of a pod
	length time.Duration // of the measurement; the cluster fills during the three lives before the measurement
	seed   uint64
}

// outcome contains a simulation's measurements.
type outcome struct {
	binds, refusals, patches int
	// utilisation is the part of the GPUs' memory that running pods hold. fragmentation is the part of
	// the free memory on GPUs without room for a pod, as a mean over the pods. Both fields are
	// means over the time.
	utilisation, fragmentation float64
	// waits are the times from the arrivals of pods to their starts.
	waits []time.Duration
	// waiting counts the pods that wait at the end.
	waiting int
}

// pod is a pod from its arrival to its end.
type pod struct {
	*shape
	asked   request.Pod // with the pod's UID
	given   []int       // the pod's GPUs, by index
	life    time.Duration
	arrived time.Duration
}

// fleet is a running simulation.
type fleet struct {
	scenario
	clock
	// random decides the arrivals and lives of pods, and ties decides between nodes with equal scores.
	// Thus all modes get the same pods.
	random, ties *rand.Rand
	shapes       []shape
	weights      int // the sum of the shapes'
	nodes        []*node
	// usual is the cluster in the form of package fragmentation.
	usual *fragmentation.Cluster
	pods  int
	// next is the time at which the scheduler can begin the next cycle.
	next    time.Duration
	waiting []*pod
	held    int64 // MiB that running pods hold
	// begun reports whether the cluster is full and the measurement has begun.
	begun    bool
	samples  int
	measured outcome
}

// simulate runs a scenario.
func simulate(s scenario) (outcome, error) {
	f, err := newFleet(s)
	if err != nil {
		return outcome{}, err
	}
	fill := 3 * s.life
	f.after(0, f.arrive)
	f.after(fill, func() { f.begun = true; f.sample() })
	f.runUntil(fill + s.length)
	o := f.measured
	o.waiting = len(f.waiting)
	o.utilisation /= float64(f.samples)
	o.fragmentation /= float64(f.samples)
	slices.Sort(o.waits)
	return o, nil
}

// slots is the number of pods that may share a GPU. slots is large, so that memory bounds the
// number of pods.
const slots = 100

func newFleet(s scenario) (*fleet, error) {
	cfg := config.Default()
	cfg.Scheduling.Mode = s.mode.name
	cfg.Node.SlotsPerGPU, cfg.Dialects.Volcano.NumberPerGPU = slots, slots
	if s.policy == config.PlaceBinpack || s.policy == config.PlaceSpread {
		cfg.Placement.Policy = s.policy
	}
	resources := slices.Sorted(maps.Keys(request.Capacity([]gpu.GPU{{UUID: "any", MemoryBytes: s.memory, Healthy: true}}, cfg)))
	shapes, err := shapesOf(s.sizes, cfg, resources)
	if err != nil {
		return nil, err
	}
	f := &fleet{scenario: s, random: rand.New(rand.NewPCG(s.seed, 0)), ties: rand.New(rand.NewPCG(s.seed, 1)), shapes: shapes}
	for i := range shapes {
		f.weights += shapes[i].weight
	}
	for i := range s.nodes {
		n := newNode(i, s.gpus, s.memory, cfg, resources)
		n.ledger.SetClock(func() time.Time { return time.Unix(0, 0).Add(f.now) })
		f.nodes = append(f.nodes, n)
		if n.offerSums(); s.mode.offer != nil {
			s.mode.offer(n)
		}
	}
	if s.policy == byFragmentation {
		f.usual = f.newUsual()
	}
	return f, nil
}

// arrive adds a pod, and schedules the arrival of the next pod.
func (f *fleet) arrive() {
	// A pod's load is the larger part of the requested memory and the requested time.
	mean := 0.0
	for i := range f.shapes {
		s := &f.shapes[i]
		part := max(float64(s.mib)/float64(f.memory/request.MiB), float64(s.percent)/100)
		mean += float64(s.gpus) * part * float64(s.weight) / float64(f.weights)
	}
	every := mean * f.life.Seconds() / (f.load * float64(f.gpus*f.scenario.nodes))
	f.after(time.Duration(f.random.ExpFloat64()*every*float64(time.Second)), f.arrive)

	s := f.draw()
	f.pods++
	p := &pod{shape: s, asked: s.asked, life: time.Duration(f.random.ExpFloat64() * float64(f.life)), arrived: f.now}
	p.asked.UID = fmt.Sprint(f.pods)
	f.queue(p)
}

// draw returns a random shape. The weights determine the probabilities.
func (f *fleet) draw() *shape {
	at := f.random.IntN(f.weights)
	for i := range f.shapes {
		if at -= f.shapes[i].weight; at < 0 {
			return &f.shapes[i]
		}
	}
	panic("the weights do not add up")
}

// queue appends a pod to the scheduler's queue.
func (f *fleet) queue(p *pod) {
	f.next = max(f.next, f.now) + cycle
	f.after(f.next-f.now, func() { f.schedule(p) })
}

// schedule binds a pod to the node with the best score, or to a random node of several nodes with
// the best score. A pod that fits no node waits.
func (f *fleet) schedule(p *pod) {
	var best *node
	var most float64
	equals := 0
	for _, n := range f.nodes {
		if !f.admits(n, p) {
			continue
		}
		score := f.score(n, p)
		if best == nil || score > most {
			best, most, equals = n, score, 1
		} else if score == most {
			if equals++; f.ties.IntN(equals) == 0 {
				best = n
			}
		}
	}
	if best == nil {
		f.waiting = append(f.waiting, p)
		return
	}
	f.bind(best, p)
}

// admits reports whether the scheduler finds room for a pod on a node.
func (f *fleet) admits(n *node, p *pod) bool {
	if f.mode.offer == nil {
		return n.hasRoom(p)
	}
	return n.admits(p)
}

// score returns the score of a node for a pod. The scheduler prefers the highest score.
func (f *fleet) score(n *node, p *pod) float64 {
	switch f.policy {
	case config.PlaceSpread:
		return -n.filled(p)
	case byFragmentation:
		return -f.cost(n, p).value
	case unscored:
		return 0
	}
	return n.filled(p)
}

func (f *fleet) bind(n *node, p *pod) {
	n.bind(p)
	f.count(func(o *outcome) { o.binds++ })
	switch {
	case f.mode.offer == nil:
		f.reserve(n, p)
	case n.cfg.Scheduling.Fit():
		_, _ = n.place(p) // the agent allocates GPUs to bound pods; start counts a refusal
	}
	f.publish(n, f.mode.taken)
	f.after(startAfter, func() { f.start(n, p) })
}

// reserve assigns GPUs to a pod in the scheduler. The node applies the assignment.
func (f *fleet) reserve(n *node, p *pod) {
	if f.usual != nil {
		p.prefer(n, f.cost(n, p).gpus)
	}
	gpus, err := n.place(p)
	if err != nil {
		// The pod does not fit the preferred GPUs for a reason other than memory and time, such as
		// an exclusive pod.
		p.asked.Containers = p.shape.asked.Containers
		if gpus, err = n.place(p); err != nil {
			panic(fmt.Sprintf("the planner found room and no GPUs: %v", err))
		}
	}
	p.given = gpus
	if f.usual != nil {
		f.usual.Add(fragmentation.Placement{Node: n.number, GPUs: gpus}, &p.usual)
	}
}

// start creates a bound pod's container.
func (f *fleet) start(n *node, p *pod) {
	if _, err := n.place(p); err != nil {
		f.count(func(o *outcome) { o.refusals++ })
		f.after(evictAfter, func() {
			f.end(n, p)
			f.queue(p) // the pod's controller creates the pod again
		})
		return
	}
	f.held += p.mib * p.gpus
	f.count(func(o *outcome) { o.waits = append(o.waits, f.now-p.arrived) })
	f.after(p.life, func() {
		f.held -= p.mib * p.gpus
		f.end(n, p)
	})
}

func (f *fleet) end(n *node, p *pod) {
	n.end(p)
	if f.usual != nil {
		f.usual.Remove(fragmentation.Placement{Node: n.number, GPUs: p.given}, &p.usual)
	}
	f.retry(n)
	f.publish(n, f.mode.freed)
}

// publish updates the Node after a delay, unless an earlier update is pending.
func (f *fleet) publish(n *node, delay time.Duration) {
	at := f.now + delay
	if f.mode.offer == nil || n.patch != 0 && n.patch <= at {
		return
	}
	n.patch = at
	f.after(delay, func() {
		if n.patch != at {
			return // an earlier update has published the change
		}
		n.patch = 0
		f.mode.offer(n)
		f.count(func(o *outcome) { o.patches++ })
		f.retry(n)
	})
}

// retry schedules the waiting pods for which a changed node has room, the oldest first.
func (f *fleet) retry(n *node) {
	full := map[*shape]bool{}
	f.waiting = slices.DeleteFunc(f.waiting, func(p *pod) bool {
		if full[p.shape] || !f.admits(n, p) {
			full[p.shape] = true
			return false
		}
		f.bind(n, p)
		return true
	})
}

// count calls what during the measurement.
func (f *fleet) count(what func(*outcome)) {
	if f.begun {
		what(&f.measured)
	}
}

// sample measures the cluster, and repeats the measurement at an interval.
func (f *fleet) sample() {
	const interval = 10 * time.Second
	f.after(interval, f.sample)
	f.samples++
	all := float64(f.memory/request.MiB) * float64(f.gpus*f.scenario.nodes)
	f.measured.utilisation += float64(f.held) / all
	var free, lost float64
	for _, n := range f.nodes {
		left := n.ledger.Left(nil)
		for _, g := range n.gpus {
			r := request.RoomOf(g, left[g.UUID], n.cfg)
			free += float64(r.MiB)
			for i := range f.shapes {
				if !r.Holds(f.shapes[i].room) {
					lost += float64(r.MiB) * float64(f.shapes[i].weight) / float64(f.weights)
				}
			}
		}
	}
	f.measured.fragmentation += lost / max(free, 1)
}
