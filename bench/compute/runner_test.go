// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// scripted is a machine with the outcomes that a test sets.
type scripted struct {
	outcomes  map[int]outcome // by limit, 0 for none
	latencies []Latency       // in turn
	runs      int
}

func (*scripted) kind() string { return "scripted" }

func (s *scripted) run(_ context.Context, loads []load, _ span) ([]outcome, error) {
	s.runs++
	var outcomes []outcome
	for _, l := range loads {
		outcomes = append(outcomes, s.outcomes[l.limit])
	}
	return outcomes, nil
}

func (s *scripted) latency(context.Context, load, *load, span) (Latency, error) {
	l := s.latencies[s.runs]
	s.runs++
	return l, nil
}

func TestRunner(t *testing.T) {
	async := allPatterns[0]
	busy := outcome{share: 100, rate: 5000}
	tests := []struct {
		name                  string
		step                  step
		unlimited, under      outcome
		target, err, relative float64
	}{
		{"held", newStep(single, load{kernelUS: 200, pattern: async, limit: 30}), busy, outcome{share: 31, rate: 1600}, 30, 1, 32},
		{"idle by itself", newStep(single, load{kernelUS: 20, pattern: async, limit: 30}),
			outcome{share: 25, rate: 100}, outcome{share: 24, rate: 96}, 25, -1, 96},
		{"a real GPU", newStep(single, load{kernelUS: 20, pattern: async, limit: 30}),
			outcome{share: math.NaN(), rate: 100}, outcome{share: math.NaN(), rate: 29}, 30, -1, 29},
		{"lending", newStep(share, load{kernelUS: 20, pattern: async, limit: 30, lends: true}), busy, outcome{share: 99, rate: 4950}, 100, -1, 99},
	}
	for _, test := range tests {
		m := &scripted{outcomes: map[int]outcome{0: test.unlimited, 30: test.under}}
		r := &runner{machine: m, unlimited: map[string]outcome{}, capacities: map[string]float64{}}
		for range 2 {
			got, err := r.run(t.Context(), test.step)
			if err != nil {
				t.Fatal(err)
			}
			if got.TargetPercent != test.target || got.ErrorPoints != test.err || got.ThroughputPercent != test.relative {
				t.Errorf("%s: target %v, error %v, throughput %v", test.name, got.TargetPercent, got.ErrorPoints, got.ThroughputPercent)
			}
		}
		want := 3 // a run without limits, and two points
		if test.unlimited.share < saturated {
			want = 4
		}
		if m.runs != want {
			t.Errorf("%s: %d runs, want %d", test.name, m.runs, want)
		}
	}
}

// TestRunnerMeasuresAgain checks that the runner repeats a disturbed point, and uses the best run.
func TestRunnerMeasuresAgain(t *testing.T) {
	for _, test := range []struct {
		stalled    []float64
		want, best float64
	}{
		{[]float64{0.2}, 1, 0.2},
		{[]float64{3, 0.5}, 2, 0.5},
		{[]float64{3, 2, 4}, 3, 2},
	} {
		m := &restless{stalled: test.stalled}
		r := &runner{machine: m}
		got, attempts, err := r.undisturbed(t.Context(), []load{{}}, span{})
		if err != nil || float64(attempts) != test.want || got[0].stalled != test.best {
			t.Errorf("%v: %d runs, the best at %v: %v", test.stalled, attempts, got, err)
		}
	}
}

// restless is a machine whose processors stall as a test configures.
type restless struct {
	scripted
	stalled []float64
}

func (m *restless) run(context.Context, []load, span) ([]outcome, error) {
	m.runs++
	return []outcome{{stalled: m.stalled[m.runs-1]}}, nil
}

func TestRunnerSideBySide(t *testing.T) {
	m := &scripted{outcomes: map[int]outcome{0: {share: 100, rate: 10}, 30: {share: 50, rate: 5}, 60: {share: 50, rate: 5}}}
	r := &runner{machine: m, unlimited: map[string]outcome{}, capacities: map[string]float64{}}
	got, err := r.run(t.Context(), groups(pair, [][]float64{{200, 20000}}, [][]int{{30, 60}}, false)[0])
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Tenants) != 2 || *got.JainIndex != 0.9 || *got.LostPercent != 11.1111 || *got.CapacityPercent != 200 || got.why() != "" {
		t.Errorf("%+v", got)
	}
	if got.Tenants[0].ErrorPoints != 20 || got.Tenants[1].ErrorPoints != -10 {
		t.Errorf("errors of %+v", got.Tenants)
	}
}

func TestRunnerLatency(t *testing.T) {
	m := &scripted{latencies: []Latency{{P99MS: 1}, {P99MS: 3}, {P99MS: 2}}}
	r := &runner{machine: m}
	got, err := r.run(t.Context(), latencies(selection{quick: true})[0])
	if err != nil {
		t.Fatal(err)
	}
	if got.Alone.P99MS != 1 || got.TimeSlicing.P99MS != 3 || got.Limited.P99MS != 2 || got.NeighbourKernelUS != neighbourKernelUS {
		t.Errorf("%+v", got.Latencies)
	}
}

func TestPressure(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cpu")
	read := func(content string) pressure {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return readPressure(path)
	}
	before := read("some avg10=1.23 avg60=0.50 avg300=0.00 total=1500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n")
	after := read("some avg10=1.23 avg60=0.50 avg300=0.00 total=2000000\n")
	after.at = before.at.Add(2 * time.Second)
	if got := after.since(before); got != 25 {
		t.Errorf("pressure %v %%, want 25", got)
	}
	if got := readPressure(path + ".missing").since(before); !math.IsNaN(got) {
		t.Errorf("without the file: %v", got)
	}
}

// TestDraw draws a chart of each kind from points of each kind.
func TestDraw(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "charts")
	side := group(1, 0, 0, 0)
	side.Tenants = []Tenant{{KernelUS: 200, LimitPercent: 30, ThroughputPercent: 29}, {KernelUS: 20000, LimitPercent: 60, ThroughputPercent: 61}}
	if err := draw(dir, []Record{on("kind", alone("a", func(*Tenant) {})), on("kind", side), on("kind", latencyPoint(2))}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"compute-share.svg":        ">async</text>",
		"compute-cards.svg":        ">kind</text>",
		"compute-error.svg":        ">-4</text>",
		"compute-side-by-side.svg": ">30 / 60</text>",
		"compute-latency.svg":      ">99th percentile</text>",
	} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !strings.Contains(string(content), want) {
			t.Errorf("%s: error %v, or no %q in it", name, err, want)
		}
	}
	empty := filepath.Join(t.TempDir(), "charts")
	if err := draw(empty, nil); err != nil {
		t.Fatal(err)
	}
	if files, err := os.ReadDir(empty); err != nil || len(files) != 0 {
		t.Errorf("from no points: %v, error %v", files, err)
	}
}
