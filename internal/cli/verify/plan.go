// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// These constants are the groups of checks.
const (
	groupDriver  = "driver"
	groupMemory  = "memory"
	groupCompute = "compute"
	groupPair    = "pair"
	groupCapture = "capture"
	groupHang    = "hang"
	groupLatency = "latency"
)

// pattern is a way of submitting work to the GPU.
type pattern struct {
	name  string
	args  []string // of the workload "spin"
	env   []string
	waits bool // waits for each launch
	graph bool // a launch is several kernels
	fills bool // each kernel fills the GPU
}

var (
	oneStream = pattern{name: "one stream", args: []string{"--pattern", "async"}}
	patterns  = []pattern{
		oneStream,
		// The grids fill the GPU, because the check could not count the time of concurrent kernels.
		{name: "eight streams", args: []string{"--pattern", "streams", "--streams", "8"}, fills: true},
		{name: "graph", args: []string{"--pattern", "graph"}, graph: true},
		{name: "launch and wait", args: []string{"--pattern", "sync"}, waits: true},
		{name: "one connection", args: []string{"--pattern", "async"}, env: []string{"CUDA_DEVICE_MAX_CONNECTIONS=1"}},
	}
	lengths = []float64{20, 200, 2000, 20000} // µs
	shares  = []int{10, 30, 50, 80}           // percent
)

// load is the work of one tenant.
type load struct {
	pattern  pattern
	kernelUS float64
	limit    int // percent
}

func (l load) String() string {
	return fmt.Sprintf("%s, %d %%, %s", l.pattern.name, l.limit, length(l.kernelUS))
}

// length formats a kernel's length for a check's name.
func length(us float64) string {
	if us >= 1000 {
		return fmt.Sprintf("%g ms", us/1000)
	}
	return fmt.Sprintf("%g µs", us)
}

// longestGraph bounds the total length of a graph's kernels, in µs. The interposer
// cannot throttle within a launch.
const longestGraph = 40000

// nodes returns the number of kernels of a launch.
func (l load) nodes() int {
	if !l.pattern.graph {
		return 1
	}
	return max(2, min(20, int(longestGraph/l.kernelUS)))
}

// launch returns the length of one launch.
func (l load) launch() time.Duration {
	return time.Duration(l.kernelUS * float64(l.nodes()) * float64(time.Microsecond))
}

// loads returns the points of the curve.
func loads(quick bool) []load {
	var all []load
	for _, p := range patterns {
		for _, us := range lengths {
			for _, share := range shares {
				l := load{p, us, share}
				if !quick && (p.name == oneStream.name || share == 30 || share == 80) || quick && l.quick() {
					all = append(all, l)
				}
			}
		}
	}
	return all
}

// quick reports whether a point belongs to the quick plan.
func (l load) quick() bool {
	if l.pattern.name == oneStream.name && (l.kernelUS == 200 || l.limit == 30) {
		return true
	}
	return l.limit == 30 && l.kernelUS == 2000
}

// couples returns the pairs of concurrent tenants.
func couples(quick bool) [][]load {
	all := [][]load{
		{{oneStream, 20000, 30}, {oneStream, 200, 60}},
		{{oneStream, 200, 30}, {oneStream, 200, 60}},
		{{oneStream, 20000, 30}, {oneStream, 20000, 60}},
	}
	if quick {
		return all[:1]
	}
	return all
}

// ways are the ways of allocating memory.
var ways = []string{
	"alloc", "alloc-v1", "pitch", "managed", "vmm", "module", "array", "array3d", "mipmap", "async", "async-ptsz",
	"pool", "graph", "graph-node", "capture", "ctx", "ctx-v3", "ctx-v4", "green",
}

// quickWays contains a way of each family.
var quickWays = []string{"alloc", "managed", "vmm", "array", "async", "pool", "graph", "ctx"}

// scene is a case in which programs broke or hung.
type scene struct {
	group, name string
	args        []string
	two         bool // needs two GPUs
	constructor bool
}

var scenes = []scene{
	{group: groupCapture, name: "blocking streams beside the legacy stream", args: []string{"captures", "--idle-us", "50"}},
	{group: groupCapture, name: "mode global", args: []string{"captures", "--idle-us", "50", "--mode", "global"}},
	{group: groupCapture, name: "mode relaxed", args: []string{"captures", "--idle-us", "50", "--mode", "relaxed"}},
	{group: groupCapture, name: "four threads at once", args: []string{"at-once"}},
	{group: groupCapture, name: "while a thread waits for an event", args: []string{"event-wait", "--captures", "10"}},
	{group: groupHang, name: "a persistent kernel", args: []string{"persistent"}},
	{group: groupHang, name: "a first allocation beside a persistent kernel", args: []string{"allocation"}},
	{group: groupHang, name: "code that is loaded lazily", args: []string{"lazy"}},
	{group: groupHang, name: "two contexts", args: []string{"contexts"}},
	{group: groupHang, name: "a green context", args: []string{"green"}},
	{group: groupHang, name: "200 threads", args: []string{"crowd", "--hold-ms", "300"}},
	{group: groupHang, name: "a constructor that uses CUDA", args: []string{"constructor"}, constructor: true},
	{group: groupHang, name: "two GPUs", args: []string{"two-gpus"}, two: true},
	{group: groupHang, name: "a full queue beside a second GPU", args: []string{"full"}, two: true},
}

// quickScenes is the number of scenes of each group in a quick run.
var quickScenes = map[string]int{groupCapture: 2, groupHang: 3}

// plan returns all checks in order.
func (v *run) plan() []check {
	checks := []check{
		{groupDriver, "look-ups agree", func(context.Context) Row { return v.start.lookupsRow() }},
		{groupDriver, "names are known", func(context.Context) Row { return v.namesRow() }},
	}
	named := ways
	if v.opts.Quick {
		named = quickWays
	}
	for _, way := range named {
		checks = append(checks, check{groupMemory, way, func(ctx context.Context) Row { return v.memory(ctx, way) }})
	}
	for _, l := range loads(v.opts.Quick) {
		checks = append(checks, check{groupCompute, l.String(), func(ctx context.Context) Row { return v.compute(ctx, l) }})
	}
	for _, c := range couples(v.opts.Quick) {
		checks = append(checks, check{groupPair, coupleName(c), func(ctx context.Context) Row { return v.compute(ctx, c...) }})
	}
	played := map[string]int{}
	for _, s := range scenes {
		if played[s.group]++; v.opts.Quick && played[s.group] > quickScenes[s.group] {
			continue
		}
		checks = append(checks, check{s.group, s.name, func(ctx context.Context) Row { return v.scene(ctx, s) }})
	}
	return append(checks, check{groupLatency, "1 ms every 20 ms beside a saturating tenant, 50 % each", v.latency})
}

func coupleName(couple []load) string {
	var parts []string
	for _, l := range couple {
		parts = append(parts, fmt.Sprintf("%d %% (%s)", l.limit, length(l.kernelUS)))
	}
	return strings.Join(parts, " beside ")
}

// row returns the row of a judgement.
func row(v Verdict, bound, figure string) Row { return Row{Verdict: v, Bound: bound, Figure: figure} }

// skipped returns the row of a check that was not possible.
func skipped(format string, args ...any) Row {
	return Row{Verdict: NotTested, Why: fmt.Sprintf(format, args...)}
}

// broken returns the row of a check that fails under limits but succeeds without.
func broken(err error) Row {
	return Row{Verdict: DoesNotHold, Bound: "runs as without limits", Why: err.Error()}
}
