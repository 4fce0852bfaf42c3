package selfcheck

import (
	"slices"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

const (
	// longestPeriod is the longest that NVML documents between two samples, and is assumed as
	// long as too few were seen.
	longestPeriod = time.Second
	// knownGaps bounds the gaps that are remembered.
	knownGaps = 256
	// spread is how much longer than the shortest a gap may be and count as one period. Two
	// periods are twice as long, less how irregular the driver is.
	spread = 1.5
)

// rhythm learns from time stamps how far apart the driver's samples of a GPU are. There is
// none of a process for a period in which it did nothing, so gaps are of one period or of several.
type rhythm struct {
	last map[int]time.Time // by pid
	gaps []time.Duration   // a ring
	next int
}

// add takes in samples of one look, each later than those of the looks before.
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

// period is the mean of the shortest gaps. A single one that is shorter than all others is a
// clock that was set.
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
