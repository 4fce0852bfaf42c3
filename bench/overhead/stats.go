package main

import (
	"fmt"
	"math"
	"slices"
)

// native is the side that others are compared with.
const native = "native"

// rule bounds what a side may cost beside the native one. A zero bounds
// nothing.
type rule struct {
	// mostNs bounds the median of the differences, in ns, if bounded.
	mostNs  float64
	bounded bool
	// mostRatio bounds the median of the ratios.
	mostRatio float64
}

// Result is what one side took for one call. Times are in ns for one call, one
// start, or one start of many.
type Result struct {
	Driver string  `json:"driver"`
	Call   string  `json:"call"`
	Side   string  `json:"side"`
	Rounds int     `json:"rounds"`
	Calls  int     `json:"calls_per_round"`
	Median float64 `json:"median_ns"`
	Min    float64 `json:"min_ns"`
	Max    float64 `json:"max_ns"`
	// Difference is the median over the rounds of what this side took more
	// than the native one in the same round; what both contain, as the
	// driver's own work, is not in it. Low and High are its bounds, with 95 %
	// confidence.
	Difference float64 `json:"difference_ns"`
	Low        float64 `json:"difference_low_ns"`
	High       float64 `json:"difference_high_ns"`
	// Share is the difference as a part of the native median, in percent.
	Share float64 `json:"difference_share_percent"`
	// Runs are the differences of each run with processes of its own.
	Runs []float64 `json:"run_differences_ns,omitempty"`
	// Ratio is the median over the rounds of the ratio to the native side,
	// with its bounds.
	Ratio     float64   `json:"ratio"`
	RatioLow  float64   `json:"ratio_low"`
	RatioHigh float64   `json:"ratio_high"`
	Rule      string    `json:"rule,omitempty"`
	Broken    bool      `json:"broken"`
	Samples   []float64 `json:"samples_ns"` // of each round, run after run
}

// compare describes each side's samples, which were taken in the same rounds, by run.
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

// joined is a side's samples of all runs.
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

// judge says what bounds the result, and whether it is out of bounds by more
// than chance explains.
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

// medianInterval bounds the median with 95 % confidence, whatever the
// distribution: by the ranks between which half of the samples lie.
func medianInterval(values []float64) (low, high float64) {
	sorted := slices.Sorted(slices.Values(values))
	n := float64(len(sorted))
	spread := 1.96 * math.Sqrt(n) / 2
	first := max(0, int(math.Floor(n/2-spread))-1)
	last := min(len(sorted)-1, int(math.Ceil(n/2+spread)))
	return sorted[first], sorted[last]
}
