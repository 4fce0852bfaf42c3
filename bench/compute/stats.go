// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"slices"
	"time"
)

// sample is the usage of a container up to an instant.
type sample struct {
	at       time.Duration // since an arbitrary origin
	busy     time.Duration // GPU time
	launches float64       // completed kernels
	metered  time.Duration // charged
}

// series are samples of one container in the order of time.
type series []sample

// began returns the latest possible start of the container's first work, derived from the GPU
// time of the first sample with work.
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

// between returns the part of the series between two instants.
func (s series) between(from, to time.Duration) series {
	first, _ := slices.BinarySearchFunc(s, from, compareTime)
	last, found := slices.BinarySearchFunc(s, to, compareTime)
	if found {
		last++
	}
	return s[first:max(first, last)]
}

func compareTime(s sample, at time.Duration) int { return int(s.at - at) }

// busyAt returns the GPU time at an instant, interpolated between two samples.
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

// share returns the percentage of GPU time from the first sample to the last.
func (s series) share() float64 {
	if len(s) < 2 {
		return math.NaN()
	}
	first, last := s[0], s[len(s)-1]
	return 100 * float64(last.busy-first.busy) / float64(last.at-first.at)
}

// charged returns the percentage of the time that was charged. The interposer charges work at
// launch, before the work runs. Therefore charged compares the averages of the first and of the
// last whole cycles, each about a quarter of the time.
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

// mean returns the mean of all samples.
func (s series) mean() (mean sample) {
	for _, one := range s {
		mean.at += one.at
		mean.busy += one.busy
		mean.metered += one.metered
	}
	count := time.Duration(len(s))
	return sample{at: mean.at / count, busy: mean.busy / count, metered: mean.metered / count}
}

// rate returns the kernels per second from the first sample to the last.
func (s series) rate() float64 {
	if len(s) < 2 {
		return math.NaN()
	}
	first, last := s[0], s[len(s)-1]
	return (last.launches - first.launches) / (last.at - first.at).Seconds()
}

// window is a period and the share of GPU time in the period.
type window struct {
	from, to  time.Duration
	share     float64
	disturbed bool // processors stalled in the window or shortly before
}

// windows returns all windows that begin at a sample and end at the first sample at least length
// later. longest is the length of the longest window, because late samples lengthen windows.
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

// mostStalled is the tolerated stalled time in a window and in an equally long period before the
// window. After longer stalls, a program catches up.
const mostStalled = 3 * time.Millisecond

// disturb marks the windows that stalls disturbed.
func disturb(windows []window, by stalls) {
	for i := range windows {
		w := &windows[i]
		w.disturbed = by.within(w.from-(w.to-w.from), w.to) > mostStalled
	}
}

// undisturbed returns the windows without disturbance.
func undisturbed(windows []window) []window {
	return slices.DeleteFunc(slices.Clone(windows), func(w window) bool { return w.disturbed })
}

// windowError returns the error in points that the fraction part of the windows does not
// exceed.
func windowError(windows []window, target, part float64) float64 {
	errors := make([]float64, len(windows))
	for i, w := range windows {
		errors[i] = math.Abs(w.share - target)
	}
	return percentile(errors, part)
}

// percentile returns the smallest value that the fraction part of all values does not exceed.
func percentile(values []float64, part float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(part * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}

// jain returns Jain's index of fairness: 1 for equal values, 1/n if a single value is not
// zero.
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

// lost returns the percentage of the allowed time that no container used. A share above its limit
// does not compensate another share below its limit. The capacity, NaN if unknown, bounds the
// allowed time.
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
