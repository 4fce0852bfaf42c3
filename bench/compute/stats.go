package main

import (
	"math"
	"slices"
	"time"
)

// sample is what a container has used up to an instant.
type sample struct {
	at       time.Duration // since an arbitrary beginning
	busy     time.Duration // GPU time
	launches float64       // kernels that ended
	metered  time.Duration // charged
}

// series are samples of one container in the order of time.
type series []sample

// began is when the container's first work began: as late as it can have been,
// by the GPU time at the first sample that has any.
func (s series) began() (time.Duration, bool) {
	for i, at := range s {
		if at.busy == 0 {
			continue
		}
		if i == 0 {
			return at.at - at.busy, true
		}
		return max(s[i-1].at, at.at-at.busy), true
	}
	return 0, false
}

// between is the part of the series from one instant to another.
func (s series) between(from, to time.Duration) series {
	first, _ := slices.BinarySearchFunc(s, from, compareTime)
	last, found := slices.BinarySearchFunc(s, to, compareTime)
	if found {
		last++
	}
	return s[first:max(first, last)]
}

func compareTime(s sample, at time.Duration) int { return int(s.at - at) }

// busyAt is the GPU time at an instant, in proportion between two samples.
func (s series) busyAt(at time.Duration) time.Duration {
	i, found := slices.BinarySearchFunc(s, at, compareTime)
	switch {
	case found:
		return s[i].busy
	case i == 0:
		return 0
	case i == len(s):
		return s[i-1].busy
	}
	before, after := s[i-1], s[i]
	part := float64(at-before.at) / float64(after.at-before.at)
	return before.busy + time.Duration(part*float64(after.busy-before.busy))
}

// share is the GPU time's percentage from the first sample to the last.
func (s series) share() float64 {
	if len(s) < 2 {
		return math.NaN()
	}
	first, last := s[0], s[len(s)-1]
	return 100 * float64(last.busy-first.busy) / float64(last.at-first.at)
}

// charged is the percentage of the time that was charged. Work is charged when it is launched
// and runs later: what lies between is averaged over the first and the last whole cycles of
// about a quarter of the time.
func (s series) charged(cycle time.Duration) float64 {
	if len(s) < 2 {
		return math.NaN()
	}
	from, to := s[0].at, s[len(s)-1].at
	part := (to - from) / 4
	if cycle > 0 {
		part = max(1, part/cycle) * cycle
	}
	begin, end := s.between(from, from+part), s.between(to-part, to)
	if len(begin) < 2 || len(end) < 2 || 2*part > to-from {
		return math.NaN()
	}
	first, last := begin[1:].mean(), end[1:].mean()
	ahead := (last.metered - last.busy) - (first.metered - first.busy)
	return s.share() + 100*float64(ahead)/float64(last.at-first.at)
}

// mean is the mean of all samples.
func (s series) mean() (mean sample) {
	for _, one := range s {
		mean.at += one.at
		mean.busy += one.busy
		mean.metered += one.metered
	}
	count := time.Duration(len(s))
	return sample{at: mean.at / count, busy: mean.busy / count, metered: mean.metered / count}
}

// rate is the kernels per second from the first sample to the last.
func (s series) rate() float64 {
	if len(s) < 2 {
		return math.NaN()
	}
	first, last := s[0], s[len(s)-1]
	return (last.launches - first.launches) / (last.at - first.at).Seconds()
}

// window is a stretch of time and the share in it.
type window struct {
	from, to  time.Duration
	share     float64
	disturbed bool // processors stood still in it or shortly before
}

// windows are all that begin at a sample and end at the first sample that is at
// least this much later. longest is the longest one: samples that come late make
// windows longer than wanted.
func (s series) windows(length time.Duration) (all []window, longest time.Duration) {
	end := 0
	for begin := range s {
		for end < len(s) && s[end].at-s[begin].at < length {
			end++
		}
		if end == len(s) {
			break
		}
		all = append(all, window{from: s[begin].at, to: s[end].at, share: s[begin : end+1].share()})
		longest = max(longest, s[end].at-s[begin].at)
	}
	return all, longest
}

// mostStalled is how long processors may stand still in a window and in as long a
// time before it, after which a program catches up.
const mostStalled = 3 * time.Millisecond

// disturb marks the windows that the machine has spoilt.
func disturb(windows []window, by stalls) {
	for i := range windows {
		w := &windows[i]
		w.disturbed = by.within(w.from-(w.to-w.from), w.to) > mostStalled
	}
}

// undisturbed are those that the machine has not spoilt.
func undisturbed(windows []window) []window {
	return slices.DeleteFunc(slices.Clone(windows), func(w window) bool { return w.disturbed })
}

// windowError is the error in points that this part of the windows keeps within.
func windowError(windows []window, target, part float64) float64 {
	errors := make([]float64, len(windows))
	for i, w := range windows {
		errors[i] = math.Abs(w.share - target)
	}
	return percentile(errors, part)
}

// percentile is the smallest value that at least this part of all do not
// exceed.
func percentile(values []float64, part float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(part * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}

// jain is Jain's index of fairness: 1 if all are equal, 1/n if one has it all.
func jain(values []float64) float64 {
	var sum, squares float64
	for _, v := range values {
		sum += v
		squares += v * v
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(values)) * squares)
}

// lost is the percentage of the time that limits allow which nobody got. What
// one had above its limit does not make up for what another had below. More than the
// capacity nobody can have; NaN is not known.
func lost(shares, limits []float64, capacity float64) float64 {
	var got, allowed float64
	for i := range shares {
		got += min(shares[i], limits[i])
		allowed += limits[i]
	}
	if capacity < allowed {
		allowed = capacity
	}
	return 100 * max(0, allowed-got) / allowed
}
