// SPDX-License-Identifier: Apache-2.0

package selfcheck

import (
	"math"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
)

const (
	// sigmas is the half width of the interval of the observed part, in standard deviations.
	sigmas = 3
	// Tolerance is the allowed distance of metered GPU time from the interval of the observed part.
	Tolerance = agentapi.MeterTolerance
)

// Tally is the observed and metered time of a container on a GPU over a period.
type Tally struct {
	// Elapsed is the length of the period.
	Elapsed time.Duration
	// Observed is the container's time by the samples.
	Observed time.Duration
	// Metered is the time that the container was charged.
	Metered time.Duration
}

func (t Tally) plus(other Tally) Tally {
	return Tally{t.Elapsed + other.Elapsed, t.Observed + other.Observed, t.Metered + other.Metered}
}

// Verdict compares observed with metered time.
type Verdict struct {
	// Elapsed is the compared time, and Samples the number of samples in it.
	Elapsed time.Duration
	Samples int
	// Observed and Metered are parts of the GPU's time, 0 to 1. Low and High are the bounds of
	// Observed, at 3 sigma to either side.
	Observed, Metered, Low, High float64
	// Disagreement is the distance of Metered from the interval from Low to High. Disagreement is
	// above 0 if the container used more than was metered, and below 0 if the container used less.
	Disagreement float64
}

// Disagrees reports whether meter and driver differ by more than the error of either.
func (v Verdict) Disagrees() bool { return math.Abs(v.Disagreement) > Tolerance }

// Ratio returns observed to metered time, with its bounds; ok is false if nothing was metered.
func (v Verdict) Ratio() (ratio, low, high float64, ok bool) {
	if v.Metered <= 0 {
		return 0, 0, 0, false
	}
	return v.Observed / v.Metered, v.Low / v.Metered, v.High / v.Metered, true
}

// judge compares a tally whose samples were one period apart.
func judge(t Tally, period time.Duration) Verdict {
	if t.Elapsed <= 0 {
		return Verdict{}
	}
	samples := max(float64(t.Elapsed)/float64(period), 1)
	v := Verdict{
		Elapsed: t.Elapsed, Samples: int(math.Round(samples)),
		Observed: min(t.Observed.Seconds()/t.Elapsed.Seconds(), 1), Metered: t.Metered.Seconds() / t.Elapsed.Seconds(),
	}
	v.Low, v.High = wilson(v.Observed, samples)
	switch {
	case v.Metered < v.Low:
		v.Disagreement = v.Low - v.Metered
	case v.Metered > v.High:
		v.Disagreement = v.High - v.Metered
	}
	return v
}

// wilson returns Wilson's score interval, a confidence interval of a part that a number of samples
// measured. The interval is valid near 0 and 1 too. If the driver names one process per sample,
// each sample is 0 or 1, and the error is binomial. If the driver measures parts, or the load of
// the whole GPU, the error is smaller.
func wilson(part, samples float64) (low, high float64) {
	const z2 = sigmas * sigmas
	scale := 1 + z2/samples
	middle := (part + z2/(2*samples)) / scale
	half := sigmas / scale * math.Sqrt(part*(1-part)/samples+z2/(4*samples*samples))
	return max(middle-half, 0), min(middle+half, 1)
}

// windowParts is the number of parts of a window. The window drops whole parts, the oldest first.
const windowParts = 10

// window is the tally of the recent time, at least span once it is full.
type window struct {
	span  time.Duration
	parts []Tally
}

func (w *window) add(t Tally) {
	if n := len(w.parts); n == 0 || w.parts[n-1].Elapsed >= w.span/windowParts {
		w.parts = append(w.parts, Tally{})
	}
	if len(w.parts) > windowParts+1 {
		w.parts = w.parts[1:]
	}
	last := &w.parts[len(w.parts)-1]
	*last = last.plus(t)
}

func (w *window) sum() (sum Tally) {
	for _, part := range w.parts {
		sum = sum.plus(part)
	}
	return sum
}
