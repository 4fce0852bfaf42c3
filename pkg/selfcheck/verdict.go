package selfcheck

import (
	"math"
	"time"
)

const (
	// sigmas is how wide the interval of what was observed is, to either side.
	sigmas = 3
	// Tolerance is by how much metered GPU time may lie outside of that interval, as a part
	// of the GPU's time: the meter's own error, and work charged before it runs.
	Tolerance = 0.03
)

// Tally is what was observed and metered of a container on a GPU in some time.
type Tally struct {
	// Elapsed is the time.
	Elapsed time.Duration
	// Observed is what the samples say that the container had of it.
	Observed time.Duration
	// Metered is what the container was charged.
	Metered time.Duration
}

func (t Tally) plus(other Tally) Tally {
	return Tally{t.Elapsed + other.Elapsed, t.Observed + other.Observed, t.Metered + other.Metered}
}

// Verdict compares what was observed with what was metered.
type Verdict struct {
	// Elapsed is the time that was compared, in so many Samples.
	Elapsed time.Duration
	Samples int
	// Observed and Metered are parts of the GPU's time, 0 to 1; Low and High are the bounds
	// of what was observed, 3 sigma to either side.
	Observed, Metered, Low, High float64
	// Disagreement is by how much what was observed is beyond those bounds: above 0 where
	// the container had more than was metered, below 0 where it had less.
	Disagreement float64
}

// Disagrees reports whether meter and driver differ by more than either may be wrong by.
func (v Verdict) Disagrees() bool { return math.Abs(v.Disagreement) > Tolerance }

// Ratio returns observed to metered time, with its bounds; ok is false where nothing was metered.
func (v Verdict) Ratio() (ratio, low, high float64, ok bool) {
	if v.Metered <= 0 {
		return 0, 0, 0, false
	}
	return v.Observed / v.Metered, v.Low / v.Metered, v.High / v.Metered, true
}

// judge compares a tally whose samples came this far apart.
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

// wilson returns the interval of a part that was observed in so many samples. Each sample is 0
// or 1 where the driver names one process, which gives the binomial error. Where it measures
// parts, and of what is known of the GPU as a whole, the error is less. The interval by Wilson's score is right for parts near 0 and 1,
// too.
func wilson(part, samples float64) (low, high float64) {
	const z2 = sigmas * sigmas
	scale := 1 + z2/samples
	middle := (part + z2/(2*samples)) / scale
	half := sigmas / scale * math.Sqrt(part*(1-part)/samples+z2/(4*samples*samples))
	return max(middle-half, 0), min(middle+half, 1)
}

// windowParts is how many parts a window has, of which the oldest is dropped at a time.
const windowParts = 10

// window is the tally of the time just past, of at least span once it is full.
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
