// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

// limits are the limits of the points with a single way: 1, 2, 3.7 and 15 GiB.
var limits = []uint64{1 * gib, 2 * gib, 37 * gib / 10, 15 * gib}

// mixName is the name of the way of points that use several ways at once.
const mixName = "mix"

// task is the work of one process.
type task struct {
	way     string
	threads int
	rounds  int    // number of fills, with a free of all memory after each fill except the last
	chunk   uint64 // size of the first pieces in bytes
	unit    uint64 // pieces are multiples of this size in bytes
	delay   time.Duration
}

// alone returns a task with a single way and the defaults of fill.
func alone(way string) task { return task{way: way, threads: 1, rounds: 1, chunk: 64 * mib, unit: 1} }

// args returns the arguments of fill. All processes hold their memory at the same time, because
// fill holds its memory until the runner kills fill.
func (t task) args() []string {
	return []string{
		"--way", t.way,
		"--threads", fmt.Sprint(t.threads),
		"--rounds", fmt.Sprint(t.rounds),
		"--chunk", fmt.Sprint(t.chunk),
		"--granularity", fmt.Sprint(t.unit),
		"--delay", fmt.Sprint(t.delay.Seconds()),
		"--hold", "86400",
	}
}

// step is the run for one point.
type step struct {
	way   string
	limit uint64 // bytes
	// The tasks run at the same time, but the last task fills the rest after the other tasks are
	// done.
	tasks []task
}

// aloneSteps returns steps for every way alone at every limit.
func aloneSteps(ways []string, limits []uint64) []step {
	var steps []step
	for _, limit := range limits {
		for _, way := range ways {
			steps = append(steps, step{way, limit, []task{alone(way)}})
		}
	}
	return steps
}

// mixSteps returns `mixes` random mixes at every limit, or no mix if ways is empty. Equal arguments
// result in equal steps. context is the size of a process's context.
func mixSteps(ways []string, limits []uint64, mixes int, seed, context uint64) []step {
	var steps []step
	if len(ways) == 0 {
		return nil
	}
	for _, limit := range limits {
		for n := range mixes {
			random := rand.New(rand.NewPCG(seed, limit+uint64(n)))
			steps = append(steps, step{mixName, limit, mix(ways, limit, context, random)})
		}
	}
	return steps
}

const (
	// mostProcesses is the greatest number of processes of a mix.
	mostProcesses = 8
	// mixDelay is the time for which the processes of a mix wait after making their contexts and
	// before filling.
	mixDelay = 2 * time.Second
	// mixUnit keeps pieces large, so that rounding by drivers is negligible. Without mixUnit,
	// several processes may have many small pieces.
	mixUnit = 64 * kib
	// leastChunk is the granularity of virtual memory. fill never requests smaller
	// pieces.
	leastChunk = 2 * mib
)

// mix returns several tasks with random ways, threads or rounds, and sizes. A mix has at least two
// tasks. The contexts take at most half of the limit. The last task takes the rest, to the byte.
func mix(ways []string, limit, context uint64, random *rand.Rand) []task {
	most := uint64(mostProcesses)
	if context > 0 {
		most = min(most, max(2, limit/context/2))
	}
	tasks := make([]task, 2+random.IntN(int(most)-1))
	for i := range tasks {
		tasks[i] = task{
			way:     ways[random.IntN(len(ways))],
			threads: 1,
			rounds:  1,
			chunk:   leastChunk << random.IntN(8), // up to 256 MiB
			unit:    mixUnit,
			delay:   mixDelay,
		}
		if random.IntN(2) == 0 {
			tasks[i].threads += random.IntN(4)
		} else {
			tasks[i].rounds += random.IntN(8)
		}
	}
	rest := alone(exactWay)
	rest.delay = mixDelay
	return append(tasks[:len(tasks)-1], rest)
}

// parseWays parses the output of `fill --list`, which has a way and its help on each line.
func parseWays(list string) []string {
	var ways []string
	for line := range strings.Lines(list) {
		if fields := strings.Fields(line); len(fields) > 0 {
			ways = append(ways, fields[0])
		}
	}
	return ways
}

// chosen returns the wanted ways, in the order of all.
func chosen(all, wanted []string) ([]string, error) {
	for _, way := range wanted {
		if !slices.Contains(all, way) {
			return nil, fmt.Errorf("way %q; allowed: %s", way, strings.Join(all, ", "))
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(way string) bool { return !slices.Contains(wanted, way) }), nil
}
