// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// These constants are the workloads of points.
const (
	single  = "single"  // a single container
	pair    = "pair"    // two containers that saturate the GPU
	triple  = "triple"  // three such containers
	latency = "latency" // a periodic short kernel beside a container that saturates the GPU
	share   = "share"   // the policy that lends idle time
	quotas  = "quota"   // containers that also have CPU quotas
)

var (
	allWorkloads = []string{single, pair, triple, latency, share, quotas}
	allKernels   = []float64{200, 20000} // µs
	allLimits    = []int{30, 70}         // percent
)

// pattern is a way of submitting work to the GPU.
type pattern struct {
	name      string
	args      []string // of the workload "spin"
	processes int
	kernels   int // of one launch
	// varies reports whether every other kernel has a tenth of the length.
	varies bool
}

// waits is the pattern that waits for each launch.
const waits = "launch-and-wait"

var allPatterns = []pattern{
	{name: "async", args: []string{"--pattern", "async"}, processes: 1, kernels: 1},
	{name: waits, args: []string{"--pattern", "sync"}, processes: 1, kernels: 1},
	{name: "graph-20", args: []string{"--pattern", "graph", "--graph-nodes", "20"}, processes: 1, kernels: 20},
	{name: "streams-8", args: []string{"--pattern", "streams", "--streams", "8"}, processes: 1, kernels: 1},
	{name: "processes-4", args: []string{"--pattern", "async"}, processes: 4, kernels: 1},
	{name: "varying", args: []string{"--pattern", "async"}, processes: 1, kernels: 1, varies: true},
}

// load is the work of one container.
type load struct {
	kernelUS float64
	pattern  pattern
	limit    int     // percent; 0 for no limit and no interposer
	lends    bool    // by the policy "share": the limit is a guarantee
	cores    float64 // CPU quota in cores, 0 for none
}

// launch returns the length of one launch, which cannot be interrupted.
func (l load) launch() time.Duration {
	return time.Duration(l.kernelUS * float64(l.pattern.kernels) * float64(time.Microsecond))
}

// cycle returns the time in which one launch of each process uses exactly the limit's
// share.
func (l load) cycle() time.Duration {
	cycle := l.launch() * time.Duration(l.pattern.processes)
	if l.limit == 0 {
		return cycle
	}
	return cycle * 100 / time.Duration(l.limit)
}

// step is the run for one point.
type step struct {
	id       string
	workload string
	loads    []load
}

// selection is the set of points to measure.
type selection struct {
	workloads []string
	kernels   []float64
	patterns  []pattern
	limits    []int
	quick     bool
}

// plan returns all points of a selection, in the order of measurement.
func plan(s selection) []step {
	var steps []step
	for _, part := range []struct {
		workload string
		steps    func(selection) []step
	}{
		{single, singles}, {pair, pairs}, {triple, triples}, {latency, latencies}, {share, shares},
		{quotas, withQuotas},
	} {
		if slices.Contains(s.workloads, part.workload) {
			steps = append(steps, part.steps(s)...)
		}
	}
	return steps
}

func singles(s selection) []step {
	var steps []step
	for _, p := range s.patterns {
		for _, kernel := range s.kernels {
			for _, limit := range s.limits {
				steps = append(steps, newStep(single, load{kernelUS: kernel, pattern: p, limit: limit}))
			}
		}
	}
	return steps
}

// Kernels of concurrent containers, in µs: equal lengths, and different lengths in both
// orders.
var (
	pairKernels   = [][]float64{{200, 200}, {20000, 20000}, {200, 20000}, {20000, 200}}
	pairLimits    = [][]int{{30, 50}, {10, 70}}
	tripleKernels = [][]float64{{200, 2000, 20000}, {20000, 2000, 200}}
	tripleLimits  = [][]int{{15, 25, 40}}
)

func pairs(s selection) []step {
	if s.quick {
		return groups(pair, [][]float64{{200, 20000}}, pairLimits[:1], false)
	}
	return groups(pair, pairKernels, pairLimits, false)
}

func triples(s selection) []step {
	if s.quick {
		return groups(triple, [][]float64{{200, 2000, 20000}}, tripleLimits, false)
	}
	return groups(triple, tripleKernels, tripleLimits, false)
}

// shares returns points for the policy "share". A single container gets all of the GPU, and several
// containers get at least their guarantees.
func shares(s selection) []step {
	limits := [][]int{{30}, {30, 50}}
	kernels := [][]float64{{200}, {20000}, {200, 20000}, {20000, 200}}
	if s.quick {
		kernels = [][]float64{{200}, {200, 20000}}
	}
	return groups(share, kernels, limits, true)
}

// groups combines kernels with limits for the same number of containers.
func groups(workload string, kernels [][]float64, limits [][]int, lends bool) []step {
	var steps []step
	for _, lengths := range kernels {
		for _, percents := range limits {
			if len(lengths) != len(percents) {
				continue
			}
			loads := make([]load, len(lengths))
			for i := range loads {
				loads[i] = load{kernelUS: lengths[i], pattern: allPatterns[0], limit: percents[i], lends: lends}
			}
			steps = append(steps, newStep(workload, loads...))
		}
	}
	return steps
}

// The latency point runs a kernel of 1 ms every 20 ms, as a server does.
const (
	periodicKernelUS = 1000
	// The period is slightly more than 20 ms, a multiple of time slices. With exactly 20 ms, the
	// kernel would always start at the same position of its neighbour's slices. With this period,
	// the kernel starts equally often at every position.
	periodMS     = 20.05
	latencyLimit = 50
	// neighbourKernelUS is the length of the neighbour's kernels.
	neighbourKernelUS = 20000
)

// latencies returns the latency point. The first load is the periodic container, and the second
// load is the neighbour.
func latencies(selection) []step {
	return []step{newStep(latency,
		load{kernelUS: periodicKernelUS, pattern: pattern{name: "periodic", processes: 1, kernels: 1}, limit: latencyLimit},
		load{kernelUS: neighbourKernelUS, pattern: allPatterns[0], limit: latencyLimit})}
}

// withQuotas returns points with containers, alone and side by side, that have half a core or two
// cores each.
func withQuotas(s selection) []step {
	all := []float64{0.5, 2}
	if s.quick {
		all = all[:1]
	}
	var steps []step
	for _, cores := range all {
		steps = append(steps, newStep(quotas, load{kernelUS: 2000, pattern: allPatterns[1], limit: 30, cores: cores}),
			newStep(quotas, load{kernelUS: 20000, pattern: allPatterns[0], limit: 30, cores: cores},
				load{kernelUS: 200, pattern: allPatterns[0], limit: 50, cores: cores}))
	}
	return steps
}

// newStep names a step by its loads: "pair/async/200+20000us/30+60", or
// "quota/async/200us/30/0.5cores".
func newStep(workload string, loads ...load) step {
	var kernels, limits []string
	for _, l := range loads {
		kernels = append(kernels, strconv.FormatFloat(l.kernelUS, 'g', -1, 64))
		limits = append(limits, strconv.Itoa(l.limit))
	}
	id := fmt.Sprintf("%s/%s/%sus/%s", workload, loads[0].pattern.name, strings.Join(kernels, "+"), strings.Join(limits, "+"))
	if cores := loads[0].cores; cores > 0 {
		id += "/" + formatNumber(cores) + "cores"
	}
	return step{id, workload, loads}
}

// span is the duration of a point's measurement.
type span struct{ warmup, measure time.Duration }

// ofTail lengthens the measurement for the 99th percentile of a load with a period of 20 ms. The
// percentile is the fifth longest of 500 samples, which varies by a tenth of a millisecond.
func (s span) ofTail() span { return span{s.warmup, 4 * s.measure} }

// leastTogether is the shortest measurement of concurrent loads. Their launches do not run in a fixed
// cycle. A launch of 20 ms, the longest of these loads, is half a point of this time.
const leastTogether = 4 * time.Second

// of lengthens the measurement to whole cycles of the longest launches. At a limit of 10 %, a graph
// of 4 s runs once in 40 s. Any 10 s then contain 0 % or 40 %, even if the limit holds exactly. The
// warm-up covers the first cycles. Each process gets one launch at once, because the length of a
// launch is unknown before the launch has run.
func (s span) of(loads []load) span {
	var cycle time.Duration
	for _, l := range loads {
		cycle = max(cycle, l.cycle())
	}
	s.warmup = max(s.warmup, firstCycles*cycle)
	if len(loads) > 1 {
		s.measure = max(s.measure, leastTogether)
	}
	if cycle > s.measure/manyCycles {
		s.measure = (s.measure + cycle - 1) / cycle * cycle
	}
	return s
}

// manyCycles is the number of cycles from which a partial cycle is negligible.
const manyCycles = 100

// firstCycles is the number of cycles after which a process has paid for launches of unknown
// length.
const firstCycles = 3

func (s span) total() time.Duration { return s.warmup + s.measure }
