// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/gpusim/simtest"
	"github.com/nri-vgpu/nri-vgpu/test/timed"
)

// newSimulated returns a machine with built programs, without limits.
func newSimulated(t testing.TB) *simulated {
	t.Helper()
	build := filepath.Dir(simtest.Build(t))
	simtest.Workload(t, "spin")
	temp := t.TempDir()
	return &simulated{host: &host{build: build, runDir: temp}, temp: temp}
}

// TestSimulated runs two containers without limits. One of the containers has four processes. The
// GPU serves all processes equally. The tolerances allow for a busy machine, on which a process
// occasionally submits too little work.
func TestSimulated(t *testing.T) { timed.Run(t, testSimulated) }

func testSimulated(t testing.TB) {
	s := newSimulated(t)
	loads := []load{
		{kernelUS: 2000, pattern: allPatterns[0]},
		{kernelUS: 2000, pattern: allPatterns[slices.IndexFunc(allPatterns, func(p pattern) bool { return p.processes == 4 })]},
	}
	got, err := s.run(t.Context(), loads, span{200 * time.Millisecond, time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []float64{20, 80} {
		if math.Abs(got[i].share-want) > 15 || math.Abs(got[i].rate-got[i].share*5) > 25 || len(got[i].windows) == 0 {
			t.Errorf("container %d: %.1f %%, %.0f kernels a second, %d windows; want %v %%",
				i, got[i].share, got[i].rate, len(got[i].windows), want)
		}
	}
	if left, err := os.ReadDir(s.temp); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, error %v", left, err)
	}
}

func TestSimulatedLatency(t *testing.T) { timed.Run(t, testSimulatedLatency) }

func testSimulatedLatency(t testing.TB) {
	s := newSimulated(t)
	neighbour := load{kernelUS: 20000, pattern: allPatterns[0]}
	periodic := load{kernelUS: 1000, pattern: pattern{processes: 1, kernels: 1}}
	got, err := s.latency(t.Context(), periodic, &neighbour, span{100 * time.Millisecond, 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if got.Samples != 24 || got.P50MS < 1 || got.P99MS < got.P50MS || *got.NeighbourPercent < 80 {
		t.Errorf("%+v, neighbour %v", got, *got.NeighbourPercent)
	}
}

// TestProgramFails checks that the error contains the program's message.
func TestProgramFails(t *testing.T) {
	s := newSimulated(t)
	broken := load{kernelUS: 200, pattern: pattern{args: []string{"--pattern", "nonsense"}, processes: 1, kernels: 1}}
	_, err := s.run(t.Context(), []load{broken}, span{0, time.Second})
	if err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("error %v", err)
	}
}

func TestInterrupted(t *testing.T) {
	s := newSimulated(t)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 500*time.Millisecond, errors.New("interrupted"))
	defer cancel()
	began := time.Now()
	_, err := s.run(ctx, []load{{kernelUS: 200, pattern: allPatterns[0]}}, span{0, time.Minute})
	if err == nil || time.Since(began) > 20*time.Second {
		t.Errorf("error %v after %v", err, time.Since(began))
	}
	if left, err := os.ReadDir(s.temp); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, error %v", left, err)
	}
}
