// SPDX-License-Identifier: Apache-2.0

package selfcheck

import (
	"slices"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

const (
	// longestPeriod is the longest period between two samples that NVML documents. period returns
	// longestPeriod until rhythm has seen enough samples.
	longestPeriod = time.Second
	// knownGaps bounds the gaps that a rhythm keeps.
	knownGaps = 256
	// spread is the largest ratio to the shortest gap at which a gap counts as one period. Two
	// periods are twice as long, less the driver's jitter.
	spread = 1.5
)

// rhythm derives the driver's sampling period of a GPU from time stamps. The driver omits an idle
// process from a period's sample, so a gap covers one period or several.
type rhythm struct {
	last map[int]time.Time // by pid
	gaps []time.Duration   // a ring
	next int
}

// add adds the samples of one query. Each sample is later than the samples of earlier queries.
func (r *rhythm) add(samples []gpu.Sample) {
	sorted := slices.SortedFunc(slices.Values(samples), func(a, b gpu.Sample) int { return a.At.Compare(b.At) })
	for _, s := range sorted {
		if r.last == nil {
			r.last = map[int]time.Time{}
		}
		before, known := r.last[s.PID]
		r.last[s.PID] = s.At
		if gap := s.At.Sub(before); known && gap > 0 {
			r.note(gap)
		}
	}
	for pid, at := range r.last {
		if len(sorted) > 0 && sorted[len(sorted)-1].At.Sub(at) > longestPeriod*knownGaps {
			delete(r.last, pid)
		}
	}
}

func (r *rhythm) note(gap time.Duration) {
	if len(r.gaps) < knownGaps {
		r.gaps = append(r.gaps, gap)
		return
	}
	r.gaps[r.next] = gap
	r.next = (r.next + 1) % knownGaps
}

// period returns the mean of the shortest gaps. period ignores a single gap that is shorter than
// all others, because it comes from a clock that was set.
func (r *rhythm) period() time.Duration {
	gaps := slices.Sorted(slices.Values(r.gaps))
	for i := range gaps {
		sum, n := time.Duration(0), 0
		for _, gap := range gaps[i:] {
			if float64(gap) > spread*float64(gaps[i]) {
				break
			}
			sum += gap
			n++
		}
		if n > 1 {
			return min(sum/time.Duration(n), longestPeriod)
		}
	}
	return longestPeriod
}
