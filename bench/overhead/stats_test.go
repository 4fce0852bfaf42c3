// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMedian(t *testing.T) {
	tests := []struct {
		values []float64
		want   float64
	}{
		{[]float64{7}, 7},
		{[]float64{9, 1}, 5},
		{[]float64{3, 1, 2}, 2},
		{[]float64{1000, 1, 3, 2}, 2.5},
	}
	for _, test := range tests {
		if got := median(test.values); got != test.want {
			t.Errorf("values %v: %v, want %v", test.values, got, test.want)
		}
	}
}

func TestMedianInterval(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(99 - i)
	}
	tests := []struct {
		values    []float64
		low, high float64
	}{
		{[]float64{7}, 7, 7},
		{[]float64{2, 1, 3}, 1, 3},
		{hundred, 39, 60}, // the 40th and 61st, as in any table of these ranks
	}
	for _, test := range tests {
		if low, high := medianInterval(test.values); low != test.low || high != test.high {
			t.Errorf("%d values: %v to %v, want %v to %v", len(test.values), low, high, test.low, test.high)
		}
	}
}

func TestCompare(t *testing.T) {
	samples := map[string][]float64{
		native:  {100, 200, 1000},
		"other": {150, 260, 1040}, // slower by 50, 60 and 40 ns, or by 50, 30 and 4 %
	}
	sides := []string{native, "other"}
	tests := []struct {
		name   string
		rule   rule
		text   string
		broken bool
	}{
		{"no rule", rule{}, "", false},
		{"within", rule{bounded: true, mostNs: 60}, "at most +60 ns", false},
		{"perhaps within", rule{bounded: true, mostNs: 45}, "at most +45 ns", false},
		{"beyond", rule{bounded: true, mostNs: 39}, "at most +39 ns", true},
		{"no more than native", rule{bounded: true}, "at most +0 ns", true},
		{"ratio within", rule{mostRatio: 1.5}, "at most × 1.50", false},
		{"ratio perhaps within", rule{mostRatio: 1.1}, "at most × 1.10", false},
		{"ratio beyond", rule{mostRatio: 1.03}, "at most × 1.03", true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			want := []Result{
				{Driver: "d", Call: "c", Side: native, Rounds: 3, Calls: 8, Median: 200, Min: 100, Max: 1000, Ratio: 1, RatioLow: 1, RatioHigh: 1, Samples: samples[native]},
				{Driver: "d", Call: "c", Side: "other", Rounds: 3, Calls: 8, Median: 260, Min: 150, Max: 1040,
					Difference: 50, Share: 25, Low: 40, High: 60, Ratio: 1.3, RatioLow: 1.04, RatioHigh: 1.5, Samples: samples["other"],
					Rule: test.text, Broken: test.broken},
			}
			got := compare("d", "c", 8, sides, one(samples), map[string]rule{"other": test.rule})
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestCompareRuns checks that compare judges the rounds of all runs together, and reports each
// run's median.
func TestCompareRuns(t *testing.T) {
	runs := []map[string][]float64{
		{native: {100, 100, 100}, "other": {110, 120, 130}},
		{native: {200, 200, 200}, "other": {240, 250, 260}},
	}
	got := compare("d", "c", 8, []string{native, "other"}, runs, nil)[1]
	if diff := cmp.Diff([]float64{20, 50}, got.Runs); diff != "" {
		t.Error(diff)
	}
	if got.Rounds != 6 || got.Difference != 35 || got.Share != 100*35.0/150 {
		t.Errorf("%d rounds, difference %v, share %v %%", got.Rounds, got.Difference, got.Share)
	}
}
