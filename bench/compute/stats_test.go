// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const ms = time.Millisecond

var approximately = cmpopts.EquateApprox(0, 1e-9)

// steady returns the samples of a container that works busy of every period after
// an idle start.
func steady(idle, period, busy time.Duration, count int) series {
	var s series
	for i := range count {
		s = append(s, sample{idle + time.Duration(i)*period, time.Duration(i) * busy, float64(i), 0})
	}
	return s
}

func TestBegan(t *testing.T) {
	tests := []struct {
		name   string
		series series
		want   time.Duration
		ok     bool
	}{
		{"nothing", nil, 0, false},
		{"idle", series{{10 * ms, 0, 0, 0}, {20 * ms, 0, 0, 0}}, 0, false},
		{"works since the last sample", series{{10 * ms, 0, 0, 0}, {20 * ms, 10 * ms, 0, 0}}, 10 * ms, true},
		{"began between two samples", series{{10 * ms, 0, 0, 0}, {20 * ms, 3 * ms, 0, 0}}, 17 * ms, true},
		{"several processes at once", series{{10 * ms, 0, 0, 0}, {20 * ms, 15 * ms, 0, 0}}, 10 * ms, true},
		{"worked before the first sample", series{{10 * ms, 4 * ms, 0, 0}}, 6 * ms, true},
	}
	for _, test := range tests {
		got, ok := test.series.began()
		if got != test.want || ok != test.ok {
			t.Errorf("%s: %v, %v; want %v, %v", test.name, got, ok, test.want, test.ok)
		}
	}
}

func TestBetween(t *testing.T) {
	s := steady(0, 10*ms, 3*ms, 5)
	tests := []struct {
		from, to time.Duration
		want     series
	}{
		{0, 40 * ms, s},
		{5 * ms, 35 * ms, s[1:4]},
		{10 * ms, 30 * ms, s[1:4]},
		{11 * ms, 19 * ms, s[2:2]},
		{50 * ms, 60 * ms, s[5:]},
		{30 * ms, 20 * ms, s[3:3]},
	}
	for _, test := range tests {
		got := s.between(test.from, test.to)
		if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(sample{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%v to %v: %s", test.from, test.to, diff)
		}
	}
}

func TestBusyAt(t *testing.T) {
	s := steady(10*ms, 10*ms, 4*ms, 3)
	for at, want := range map[time.Duration]time.Duration{
		0: 0, 10 * ms: 0, 15 * ms: 2 * ms, 20 * ms: 4 * ms, 30 * ms: 8 * ms, 99 * ms: 8 * ms,
	} {
		if got := s.busyAt(at); got != want {
			t.Errorf("at %v: %v, want %v", at, got, want)
		}
	}
}

func TestShareAndRate(t *testing.T) {
	s := steady(time.Second, 10*ms, 3*ms, 5)
	if got := s.share(); got != 30 {
		t.Errorf("share %v, want 30", got)
	}
	if got := s.rate(); math.Abs(got-100) > 1e-9 {
		t.Errorf("rate %v, want 100", got)
	}
	if got := s[:1].share(); !math.IsNaN(got) {
		t.Errorf("share of one sample is %v", got)
	}
	if got := s[:0].rate(); !math.IsNaN(got) {
		t.Errorf("rate of no samples is %v", got)
	}
}

func TestWindows(t *testing.T) {
	tests := []struct {
		name    string
		series  series
		want    []float64
		longest time.Duration
	}{
		{"nothing", nil, nil, 0},
		{"too short", steady(0, 25*ms, ms, 4), nil, 0},
		{"even", steady(0, 25*ms, 5*ms, 6), []float64{20, 20}, 100 * ms},
		{"a turn of work", series{{0, 0, 0, 0}, {50 * ms, 50 * ms, 0, 0}, {100 * ms, 50 * ms, 0, 0}, {150 * ms, 50 * ms, 0, 0}},
			[]float64{50, 0}, 100 * ms},
		{"a late sample", series{{0, 0, 0, 0}, {50 * ms, 10 * ms, 0, 0}, {160 * ms, 32 * ms, 0, 0}}, []float64{20, 20}, 160 * ms},
	}
	for _, test := range tests {
		windows, longest := test.series.windows(windowLength)
		var got []float64
		for _, w := range windows {
			got = append(got, w.share)
		}
		if diff := cmp.Diff(test.want, got, approximately); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
		if longest != test.longest {
			t.Errorf("%s: longest %v, want %v", test.name, longest, test.longest)
		}
	}
}

func TestPercentile(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i)
	}
	tests := []struct {
		values []float64
		part   float64
		want   float64
	}{
		{nil, 0.99, math.NaN()},
		{[]float64{7}, 0.99, 7},
		{[]float64{3, 1, 2}, 0.5, 2},
		{[]float64{4, 3, 1, 2}, 0.5, 2},
		{hundred, 0.99, 99},
		{hundred, 1, 100},
		{hundred, 0, 1},
	}
	for _, test := range tests {
		got := percentile(test.values, test.part)
		if diff := cmp.Diff(test.want, got, cmpopts.EquateNaNs()); diff != "" {
			t.Errorf("%v of %v: %s", test.part, test.values, diff)
		}
	}
	if got := windowError([]window{{share: 28}, {share: 31}, {share: 30}}, 30, 0.99); got != 2 {
		t.Errorf("window error %v, want 2", got)
	}
}

// TestDisturb checks that a window does not count against a limiter if processors stalled in the
// window or shortly before the window.
func TestDisturb(t *testing.T) {
	stood := stalls{{105 * ms, 107 * ms}, {108 * ms, 110 * ms}, {400 * ms, 403 * ms}}
	tests := []struct {
		name     string
		from, to time.Duration
		want     bool
	}{
		{"before", 0, 100 * ms, false},
		{"half of the window", 7 * ms, 107 * ms, false},
		{"in the window", 25 * ms, 125 * ms, true},
		{"shortly before the window", 150 * ms, 250 * ms, true},
		{"long before the window", 225 * ms, 325 * ms, false},
		{"not for long", 350 * ms, 450 * ms, false},
	}
	for _, test := range tests {
		windows := []window{{from: test.from, to: test.to, share: 30}}
		disturb(windows, stood)
		if windows[0].disturbed != test.want || len(undisturbed(windows)) == 1 == test.want {
			t.Errorf("%s: disturbed %v, want %v", test.name, windows[0].disturbed, test.want)
		}
	}
}

// TestWatchStalls checks that the watch records the time that programs of higher priority
// take.
func TestWatchStalls(t *testing.T) {
	w := watchStalls(t.Context())
	from := monotonic()
	time.Sleep(50 * ms)
	for _, s := range w.stop() {
		if s.from < from || s.to <= s.from || s.to > monotonic() {
			t.Errorf("stood still from %v to %v, watched from %v", s.from, s.to, from)
		}
	}
}

func TestJainAndLost(t *testing.T) {
	tests := []struct {
		shares, limits []float64
		capacity       float64
		jain, lost     float64
	}{
		{[]float64{30, 60}, []float64{30, 60}, 100, 1, 0},
		{[]float64{50, 50}, []float64{30, 60}, 100, 0.9, 11.1},
		{[]float64{45, 45}, []float64{50, 50}, 100, 1, 10},
		{[]float64{45, 45}, []float64{50, 50}, 90, 1, 0},
		{[]float64{45, 45}, []float64{50, 50}, math.NaN(), 1, 10},
		{[]float64{100, 0}, []float64{50, 50}, 100, 0.5, 50},
		{[]float64{0, 0}, []float64{50, 50}, 100, 0, 100},
		{[]float64{50, 50}, []float64{80, 80}, 100, 1, 0},
	}
	for _, test := range tests {
		var fractions []float64
		for i := range test.shares {
			fractions = append(fractions, test.shares[i]/test.limits[i])
		}
		if got := jain(fractions); math.Abs(got-test.jain) > 1e-3 {
			t.Errorf("shares %v of %v: Jain's index %v, want %v", test.shares, test.limits, got, test.jain)
		}
		if got := lost(test.shares, test.limits, test.capacity); math.Abs(got-test.lost) > 0.02 {
			t.Errorf("shares %v of %v: lost %v, want %v", test.shares, test.limits, got, test.lost)
		}
	}
}

// TestJudge judges a container that uses 50 ms at once and is then limited to 20 %.
func TestJudge(t *testing.T) {
	s := series{{0, 0, 0, 0}, {50 * ms, 50 * ms, 5, 0}}
	for i := 1; i <= 160; i++ {
		s = append(s, sample{50*ms + time.Duration(i)*25*ms, 50*ms + time.Duration(i)*5*ms, 5 + float64(i)/2, 0})
	}
	got := judge(s, 2*time.Second, 4*time.Second, stalls{{3 * time.Second, 3010 * ms}, {5 * time.Second, 6 * time.Second}})
	if math.Abs(got.share-20) > 1e-9 || math.Abs(got.rate-20) > 1e-9 {
		t.Errorf("share %v, rate %v; want 20 and 20", got.share, got.rate)
	}
	// The container uses 50 ms, and 20 % of the other 950 ms.
	if math.Abs(got.firstSecond-24) > 1e-9 {
		t.Errorf("first second %v, want 24", got.firstSecond)
	}
	if len(got.windows) != 77 || got.longestWindow != windowLength {
		t.Errorf("%d windows, the longest %v", len(got.windows), got.longestWindow)
	}
	if calm := len(undisturbed(got.windows)); calm >= 77 || calm < 60 {
		t.Errorf("%d of 77 windows are undisturbed", calm)
	}
	if want := 0.5 / float64(runtime.NumCPU()); math.Abs(got.stalled-want) > 1e-9 {
		t.Errorf("the processors stood still for %v %%, want %v", got.stalled, want)
	}
}

// TestCharged checks that a charge for work that has not run yet does not count as an error.
func TestCharged(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct {
		name   string
		charge func(i int) time.Duration // up to sample i; each sample used 10 ms
		want   float64
	}{
		{"exact", func(i int) time.Duration { return time.Duration(i) * 10 * ms }, 40},
		{"ahead by up to 40 ms", func(i int) time.Duration { return time.Duration((i+3)/4) * 40 * ms }, 40},
		{"half", func(i int) time.Duration { return time.Duration(i) * 5 * ms }, 20},
	} {
		s := steady(0, 25*ms, 10*ms, 161)
		for i := range s {
			s[i].metered = test.charge(i)
		}
		if got := s.charged(100 * ms); math.Abs(got-test.want) > 0.1 {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
	if got := steady(0, 25*ms, 10*ms, 3).charged(100 * ms); !math.IsNaN(got) {
		t.Errorf("three samples: %v", got)
	}
}
