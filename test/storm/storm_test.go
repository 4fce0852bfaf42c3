// SPDX-License-Identifier: Apache-2.0

// Package storm tests a group's memory limit with concurrent actions of processes. Many processes
// of many threads acquire and free memory of simulated GPUs in every way, fork, end, and are killed
// at any moment. The simulated driver, which knows no limits, provides the reference values.
//
// Run `make build` first. `go test ./test/storm -storm.duration=5m` runs every night.
package storm

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

var (
	duration = flag.Duration("storm.duration", 30*time.Second, "duration of the storm")
	library  = flag.String("storm.lib", "../../build/lib", "directory of the interposer")
	seed     = flag.Uint64("storm.seed", 0, "seed of the storm's random choices; 0: a new seed")
	ways     = flag.String("storm.ways", "all", "names of ways to take memory, as the workload fill lists them, with commas between")
)

// processes is the number of concurrent processes of the storm, without the processes' children.
const processes = 8

func newSeed() uint64 {
	if *seed != 0 {
		return *seed
	}
	return rand.Uint64()
}

// TestStorm checks that the group never holds more than its limit of either GPU. No process may
// hang or fail, and dead processes leave no charges.
func TestStorm(t *testing.T) {
	m := newMachine(t)
	m.found()
	places := m.places(newSeed(), time.Now().Add(*duration))
	w := m.watch()
	m.storm(places)
	w.end()

	if err := eventually.Wait(patience, "all processes have ended", func() bool {
		live, err := m.oracle.Processes()
		return err == nil && len(live) == 0
	}); err != nil {
		m.Error(err)
	}
	m.checkPeaks()
	m.checkUnused("after all have died")
	m.checkWholeLimit()
	m.checkUnused("after a process had all of it")
	m.summarize(places, w)
}

// TestStormWithoutLimits is the control experiment. Without the interposer the same storm holds
// more than the limit, and the oracle detects the excess.
func TestStormWithoutLimits(t *testing.T) {
	m := newMachine(t)
	places := m.places(newSeed(), time.Now().Add(3*time.Second))
	for _, p := range places {
		p.command = m.command
	}
	m.storm(places)
	for gpu, peak := range m.peaks() {
		if peak <= limit {
			t.Errorf("GPU %d: %d bytes at the peak, want at least %d without limits", gpu, peak, uint64(limit))
		}
	}
}

func (m *machine) places(seed uint64, end time.Time) []*place {
	m.Logf("seed %d", seed)
	all := make([]*place, processes)
	for i := range all {
		all[i] = &place{machine: m, number: i, random: rand.New(rand.NewPCG(seed, uint64(i))), end: end, command: m.limited}
	}
	return all
}

// storm runs all places to the end.
func (m *machine) storm(places []*place) {
	m.Helper()
	var all sync.WaitGroup
	for _, p := range places {
		all.Go(p.run)
	}
	all.Wait()
	for _, p := range places {
		for _, problem := range p.tally.problems {
			m.Error(problem)
		}
	}
}

// checkPeaks checks that the peak does not exceed the limit, and is near the limit. A lower peak
// would not test the limit.
func (m *machine) checkPeaks() {
	m.Helper()
	for gpu, peak := range m.peaks() {
		if peak > limit || peak < limit/100*95 {
			m.Errorf("GPU %d: %d bytes at the peak, want 95 to 100 %% of %d", gpu, peak, uint64(limit))
		}
	}
}

// checkUnused checks that no memory counts as used on the usage page. A dying process releases its
// part of the page last, after its memory.
func (m *machine) checkUnused(when string) {
	m.Helper()
	if err := eventually.Wait(patience, "nothing is used "+when, func() bool {
		usage, err := limits.ReadUsage(filepath.Join(m.groupDir(), limits.UsageFile))
		if err != nil {
			m.Fatal(err)
		}
		for _, use := range usage.Devices {
			if use.UsedBytes != 0 || use.PendingBytes != 0 || use.ContextBytes != 0 {
				return false
			}
		}
		return len(usage.Processes) == 0
	}); err != nil {
		m.Error(err)
	}
}

// checkWholeLimit checks that a new process gets all of each GPU's limit. The process must reclaim
// all charges that dead processes have left on the usage page.
func (m *machine) checkWholeLimit() {
	m.Helper()
	all, err := m.oracle.GPUs()
	if err != nil {
		m.Fatal(err)
	}
	for gpu := range gpus {
		cmd := m.limited(m.workload("fill"), "--device", fmt.Sprint(gpu))
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		var got struct {
			Granted uint64 `json:"granted_bytes"`
			Outcome string `json:"outcome"`
		}
		if err != nil || json.Unmarshal(out, &got) != nil {
			m.Errorf("GPU %d, after the storm: %v: %s%s", gpu, err, out, &stderr)
			continue
		}
		if want := limit - all[gpu].ContextBytes - limit/100; got.Granted < want || got.Outcome != "refused" {
			m.Errorf("GPU %d, after the storm: %s at %d bytes, want refused at %d or more", gpu, got.Outcome, got.Granted, want)
		}
	}
	m.checkPeaks()
}

func (m *machine) summarize(places []*place, w *watcher) {
	m.Helper()
	var kills, ends int
	sum := report{Takes: map[string]uint64{}}
	for _, p := range places {
		kills, ends = kills+p.tally.kills, ends+p.tally.ends
		for _, r := range p.tally.reports {
			for way, n := range r.Takes {
				sum.Takes[way] += n
			}
			sum.Refusals += r.Refusals
			sum.Forks += r.Forks
			sum.Execs += r.Execs
		}
	}
	m.Logf("%s: %d processes killed, %d ended by themselves; these took %v, were refused %d times, forked %d times, with exec %d",
		*duration, kills, ends, sum.Takes, sum.Refusals, sum.Forks, sum.Execs)
	m.Logf("the test queried the oracle %d times; limit %d, peaks %v; added up over processes, not at one moment, %v", w.samples, uint64(limit), m.peaks(), w.seen)
	if kills == 0 || w.samples == 0 {
		m.Errorf("%d kills, %d looks: not a storm", kills, w.samples)
	}
	for way, n := range sum.Takes {
		if n == 0 {
			m.Errorf("nothing was ever taken by %s", way)
		}
	}
}
