// SPDX-License-Identifier: Apache-2.0

package selfcheck

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

const sixth = time.Second / 6

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name         string
		elapsed      time.Duration
		observed     float64 // part
		metered      float64 // part
		period       time.Duration
		disagreement float64
		disagrees    bool
	}{
		{"they agree", 10 * time.Minute, 0.3, 0.3, sixth, 0, false},
		{"within 3 sigma: 2.3 points", 10 * time.Minute, 0.3, 0.28, sixth, 0, false},
		{"beyond 3 sigma, within 3 points", 10 * time.Minute, 0.35, 0.3, sixth, 0.027, false},
		{"beyond both", 10 * time.Minute, 0.37, 0.3, sixth, 0.046, true},
		{"half of it metered", 10 * time.Minute, 0.3, 0.15, sixth, 0.128, true},
		{"twice as much metered", 10 * time.Minute, 0.3, 0.6, sixth, -0.277, true},
		{"nothing metered", 10 * time.Minute, 0.3, 0, sixth, 0.278, true},
		{"nothing observed", 10 * time.Minute, 0, 0.3, sixth, -0.2975, true},
		{"nothing at all", 10 * time.Minute, 0, 0, sixth, 0, false},
		{"too short for a verdict", 5 * time.Second, 0.3, 0.15, sixth, 0, false},
		{"long enough with more samples", 30 * time.Second, 0.6, 0.3, time.Second / 10, 0.215, true},
		{"all of the time", 10 * time.Minute, 1, 0.998, sixth, 0, false},
		{"one look", time.Second, 1, 0.1, time.Second, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := judge(Tally{
				Elapsed: c.elapsed, Observed: time.Duration(c.observed * float64(c.elapsed)),
				Metered: time.Duration(c.metered * float64(c.elapsed)),
			}, c.period)
			if math.Abs(v.Disagreement-c.disagreement) > 0.002 || v.Disagrees() != c.disagrees {
				t.Errorf("%+v, want a disagreement of %v (%v)", v, c.disagreement, c.disagrees)
			}
			if math.Abs(v.Observed-c.observed) > 1e-9 || math.Abs(v.Metered-c.metered) > 1e-9 {
				t.Errorf("observed %v, metered %v", v.Observed, v.Metered)
			}
			ratio, low, high, ok := v.Ratio()
			if !ok && (ratio != 0 || low != 0 || high != 0) {
				t.Errorf("without a ratio: %v (%v to %v)", ratio, low, high)
			}
			if ok != (c.metered > 0) || ok && (math.Abs(ratio-c.observed/c.metered) > 1e-9 || low > ratio || high < ratio) {
				t.Errorf("ratio %v (%v to %v), %v", ratio, low, high, ok)
			}
		})
	}
	if v := judge(Tally{}, sixth); v != (Verdict{}) {
		t.Errorf("without time: got %+v", v)
	}
}

// TestIntervalHoldsBinomialSamples checks that the interval covers the samples' error. All but a
// few in a thousand containers with random samples lie within 3 sigma.
func TestIntervalHoldsBinomialSamples(t *testing.T) {
	const tries, samples = 20000, 600
	random := rand.New(rand.NewPCG(1, 2))
	for _, part := range []float64{0.02, 0.1, 0.5, 0.95} {
		outside := 0
		for range tries {
			hits := 0
			for range samples {
				if random.Float64() < part {
					hits++
				}
			}
			v := judge(Tally{
				Elapsed: samples * sixth, Observed: time.Duration(hits) * sixth,
				Metered: time.Duration(part * float64(samples*sixth)),
			}, sixth)
			if v.Disagreement != 0 {
				outside++
			}
		}
		if rate := float64(outside) / tries; rate > 0.006 || rate == 0 {
			t.Errorf("with %v of the time, a part of %.4f of the containers is outside the interval, want 0.0027", part, rate)
		}
	}
}

func TestWindowForgets(t *testing.T) {
	w := window{span: 10 * time.Minute}
	second := func(observed time.Duration) Tally { return Tally{time.Second, observed, time.Second / 2} }
	for range 600 {
		w.add(second(time.Second))
	}
	if got := w.sum(); got != (Tally{10 * time.Minute, 10 * time.Minute, 5 * time.Minute}) {
		t.Errorf("after ten minutes it is %+v", got)
	}
	for range 660 {
		w.add(second(0))
	}
	if got := w.sum(); got.Observed != 0 || got.Elapsed < 10*time.Minute || got.Elapsed > 11*time.Minute {
		t.Errorf("eleven minutes later it is %+v", got)
	}
}

// sampled returns samples that each name at most one process at random, by the processes' parts of
// the time.
func sampled(random *rand.Rand, n int, period time.Duration, jitter float64, parts map[int]float64) []gpu.Sample {
	at := time.Unix(1_700_000_000, 0)
	var all []gpu.Sample
	for range n {
		at = at.Add(time.Duration((1 + jitter*(2*random.Float64()-1)) * float64(period)))
		drawn := random.Float64()
		for pid := 1; pid <= len(parts); pid++ {
			if drawn -= parts[pid]; drawn < 0 {
				all = append(all, gpu.Sample{PID: pid, At: at, Percent: 100})
				break
			}
		}
	}
	return all
}

func TestRhythm(t *testing.T) {
	for _, c := range []struct {
		name   string
		period time.Duration
		jitter float64
		parts  map[int]float64
	}{
		{"one process, all of the time", sixth, 0, map[int]float64{1: 1}},
		{"one process, a third of the time", sixth, 0, map[int]float64{1: 0.3}},
		{"one process, now and then", sixth, 0, map[int]float64{1: 0.05}},
		{"several", sixth, 0, map[int]float64{1: 0.3, 2: 0.2, 3: 0.1}},
		{"irregular", sixth, 0.15, map[int]float64{1: 0.5, 2: 0.2}},
		{"irregular, now and then", sixth, 0.15, map[int]float64{1: 0.1}},
		{"once a second", time.Second, 0, map[int]float64{1: 0.3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r rhythm
			samples := sampled(rand.New(rand.NewPCG(3, 4)), 3600, c.period, c.jitter, c.parts)
			for len(samples) > 0 { // in batches, as queries return them
				n := min(len(samples), 4)
				r.add(samples[:n])
				samples = samples[n:]
			}
			if off := r.period().Seconds()/c.period.Seconds() - 1; math.Abs(off) > 0.03 {
				t.Errorf("the period is %v, want %v", r.period(), c.period)
			}
		})
	}
}

func TestRhythmOfPartsOfSeveralProcesses(t *testing.T) {
	var r rhythm
	at := time.Unix(1_700_000_000, 0)
	for i := range 100 {
		at = at.Add(100 * time.Millisecond)
		r.add([]gpu.Sample{{PID: 1, At: at, Percent: 30}, {PID: 2, At: at.Add(time.Microsecond), Percent: 60}})
		if i == 50 {
			r.add([]gpu.Sample{{PID: 1, At: at.Add(5 * time.Millisecond), Percent: 30}}) // the clock was set
		}
	}
	if got := r.period(); got < 99*time.Millisecond || got > 101*time.Millisecond {
		t.Errorf("the period is %v", got)
	}
	var none rhythm
	if none.period() != longestPeriod {
		t.Errorf("without samples the period is %v", none.period())
	}
}

func TestWilson(t *testing.T) {
	for _, c := range []struct{ part, samples, low, high float64 }{
		{0.3, 3600, 0.27761, 0.32339},
		{0, 600, 0, 9.0 / 609},
		{1, 600, 600.0 / 609, 1},
		{0.5, 1, 0.02566, 0.97434},
	} {
		low, high := wilson(c.part, c.samples)
		if math.Abs(low-c.low) > 1e-5 || math.Abs(high-c.high) > 1e-5 {
			t.Errorf("%v of %v samples are %v to %v, want %v to %v", c.part, c.samples, low, high, c.low, c.high)
		}
	}
}
