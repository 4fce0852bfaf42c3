// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"slices"
)

// native is the side with which compare compares the other sides.
const native = "native"

// rule bounds the cost of a side relative to the native side. The zero value sets no bound.
type rule struct {
	// mostNs bounds the median of the differences, in ns, if bounded is true.
	mostNs  float64
	bounded bool
	// mostRatio bounds the median of the ratios.
	mostRatio float64
}

// Result contains the times of one side, in ns, for a call, a start, or a start of many processes.
type Result struct {
	Driver string  `json:"driver"`
	Call   string  `json:"call"`
	Side   string  `json:"side"`
	Rounds int     `json:"rounds"`
	Calls  int     `json:"calls_per_round"`
	Median float64 `json:"median_ns"`
	Min    float64 `json:"min_ns"`
	Max    float64 `json:"max_ns"`
	// Difference is the median over the rounds of this side's time less the native time in the same
	// round. The driver's own work, which both times contain, cancels out. Low and High are the
	// bounds with 95 % confidence.
	Difference float64 `json:"difference_ns"`
	Low        float64 `json:"difference_low_ns"`
	High       float64 `json:"difference_high_ns"`
	// Share is the difference as a percentage of the native median.
	Share float64 `json:"difference_share_percent"`
	// Runs are the differences of the runs. Each run starts new processes.
	Runs []float64 `json:"run_differences_ns,omitempty"`
	// Ratio is the median over the rounds of the ratio to the native side, with its
	// bounds.
	Ratio     float64   `json:"ratio"`
	RatioLow  float64   `json:"ratio_low"`
	RatioHigh float64   `json:"ratio_high"`
	Rule      string    `json:"rule,omitempty"`
	Broken    bool      `json:"broken"`
	Samples   []float64 `json:"samples_ns"` // of each round, run after run
}

// compare returns a result for each side. The samples of all sides, by run, come from the same
// rounds.
func compare(driver, call string, calls int, sides []string, runs []map[string][]float64, rules map[string]rule) []Result {
	results := make([]Result, 0, len(sides))
	base := joined(runs, native)
	for _, side := range sides {
		own := joined(runs, side)
		ratios := make([]float64, len(own))
		for i := range own {
			ratios[i] = own[i] / base[i]
		}
		between := differences(own, base)
		r := Result{
			Driver: driver, Call: call, Side: side, Rounds: len(own), Calls: calls,
			Median: median(own), Min: slices.Min(own), Max: slices.Max(own),
			Difference: median(between),
			Ratio:      median(ratios),
			Samples:    own,
		}
		r.Share = 100 * r.Difference / median(base)
		r.Low, r.High = medianInterval(between)
		r.RatioLow, r.RatioHigh = medianInterval(ratios)
		if len(runs) > 1 {
			for _, run := range runs {
				r.Runs = append(r.Runs, median(differences(run[side], run[native])))
			}
		}
		r.judge(rules[side])
		results = append(results, r)
	}
	return results
}

// joined returns a side's samples of all runs.
func joined(runs []map[string][]float64, side string) []float64 {
	var all []float64
	for _, run := range runs {
		all = append(all, run[side]...)
	}
	return all
}

func differences(own, base []float64) []float64 {
	between := make([]float64, len(own))
	for i := range own {
		between[i] = own[i] - base[i]
	}
	return between
}

// judge sets the rule of the result. judge marks the result as broken if the whole interval of the
// result exceeds the bound.
func (r *Result) judge(bounds rule) {
	switch {
	case bounds.bounded:
		r.Rule = fmt.Sprintf("at most %+.0f ns", bounds.mostNs)
		r.Broken = r.Low > bounds.mostNs
	case bounds.mostRatio > 0:
		r.Rule = fmt.Sprintf("at most × %.2f", bounds.mostRatio)
		r.Broken = r.RatioLow > bounds.mostRatio
	}
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// medianInterval returns bounds of the median with 95 % confidence for any
// distribution. The bounds are the samples of two ranks.
func medianInterval(values []float64) (low, high float64) {
	sorted := slices.Sorted(slices.Values(values))
	n := float64(len(sorted))
	spread := 1.96 * math.Sqrt(n) / 2
	first := max(0, int(math.Floor(n/2-spread))-1)
	last := min(len(sorted)-1, int(math.Ceil(n/2+spread)))
	return sorted[first], sorted[last]
}
