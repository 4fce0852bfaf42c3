// SPDX-License-Identifier: Apache-2.0

package selfcheck

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// TestObservedByKindOfDriver checks the observed time of two containers with each kind of driver.
// The first kind reports each process's part of each period. The second kind names the process that
// was active at a period's end, with the load of the whole GPU. The third kind names the process
// that was active last.
func TestObservedByKindOfDriver(t *testing.T) {
	for _, parts := range [][2]float64{{0.3, 0}, {0.2, 0.7}, {0.05, 0.1}, {0.5, 0.5}} {
		for _, kind := range []string{"exact", "sampled", "last", "sampled, without loads"} {
			random := rand.New(rand.NewPCG(5, 6))
			n := newNode(t)
			for i, name := range []string{"a", "b"} {
				n.contain(name, limits.Device{ComputePPM: 500_000})
				n.run(name, i+1)
			}
			total := parts[0] + parts[1]
			for range 600 {
				n.samples, n.loads = n.samples[:0], n.loads[:0]
				for i := range 6 {
					at := n.clock.Add(time.Duration(i+1) * sixth)
					n.loads = append(n.loads, gpu.Load{At: at, Percent: uint32(math.Round(100 * total))})
					drawn, worth := random.Float64(), uint32(math.Round(100*total))
					if kind == "last" {
						drawn *= total
					}
					if kind == "sampled, without loads" {
						worth = 100 // each sample names one process, with the whole period
					}
					switch {
					case kind == "exact":
						n.samples = append(n.samples, gpu.Sample{PID: 1, At: at, Percent: uint32(100 * parts[0])}, gpu.Sample{PID: 2, At: at, Percent: uint32(100 * parts[1])})
					case drawn < parts[0]:
						n.samples = append(n.samples, gpu.Sample{PID: 1, At: at, Percent: worth})
					case drawn < total:
						n.samples = append(n.samples, gpu.Sample{PID: 2, At: at, Percent: worth})
					}
				}
				if kind == "sampled, without loads" {
					n.loads = nil
				}
				n.charge("a", time.Duration(parts[0]*float64(time.Second)))
				n.charge("b", time.Duration(parts[1]*float64(time.Second)))
				n.clock = n.clock.Add(time.Second)
				n.step(t.Context())
			}
			for i, name := range []string{"a", "b"} {
				if v := n.verdict(name); math.Abs(v.Observed-parts[i]) > 0.025 || v.Disagrees() {
					t.Errorf("%s, %v: of %s got %+v", kind, parts, name, v)
				}
			}
		}
	}
}

// TestBusyTimeIsBounded checks that a GPU accumulates at most longestWait until a sample names a process.
func TestBusyTimeIsBounded(t *testing.T) {
	var b busy
	at := time.Unix(1_700_000_000, 0)
	second := func(percent uint32) bool {
		at = at.Add(time.Second)
		return b.add([]gpu.Load{{At: at, Percent: percent}}, at)
	}
	if second(100) {
		t.Error("the first sample has no period before it")
	}
	for range 5 {
		if !second(100) || b.scale(0) != 0 {
			t.Error("a sample without a process counts for a process")
		}
	}
	if second(101) {
		t.Error("an invalid sample counts")
	}
	b.add([]gpu.Load{{At: at, Percent: 50}}, at)
	if got := b.scale(2); got != (longestWait+time.Second/2)/2 {
		t.Errorf("got %v", got)
	}
}

// TestBusyTimeFollowsTheClock checks that samples from the future, and a clock that was set back, do not
// keep later samples from counting.
func TestBusyTimeFollowsTheClock(t *testing.T) {
	var b busy
	at := time.Unix(1_700_000_000, 0)
	second := func(loads ...gpu.Load) bool {
		at = at.Add(time.Second)
		return b.add(append(loads, gpu.Load{At: at, Percent: 50}), at)
	}
	second()
	if !second() || !second(gpu.Load{At: at.Add(time.Hour), Percent: 50}) || !second() {
		t.Error("no sample counts after a sample from the future")
	}
	b.scale(1)
	at = at.Add(-time.Hour)
	if second() || !second() || b.scale(1) != time.Second/2 {
		t.Error("not one sample counts after the clock was set back")
	}
}
