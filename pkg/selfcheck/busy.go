package selfcheck

import (
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// longestWait bounds the busy time of a GPU that waits for a sample that names somebody.
const longestWait = time.Second

// busy divides the time that a GPU was busy among those whom its samples name. Drivers measure
// how busy the GPU was in each period, and name who is active at its end. Where nobody is
// just then, they name nobody: the parts that they give processes add up to less than the GPU did.
type busy struct {
	last    time.Time // the end of the last period
	waiting time.Duration
}

// add takes in the GPU's own samples. It reports whether there were any.
func (b *busy) add(loads []gpu.Load) bool {
	any := false
	for _, l := range loads {
		if !l.At.After(b.last) || l.Percent > 100 {
			continue
		}
		if gap := l.At.Sub(b.last); gap <= latest {
			b.waiting += gap * time.Duration(l.Percent) / 100
			any = true
		}
		b.last = l.At
	}
	return any
}

// scale returns what each part of a sample is worth, where samples name processes with so many
// parts in all.
func (b *busy) scale(parts float64) time.Duration {
	if parts == 0 {
		b.waiting = min(b.waiting, longestWait)
		return 0
	}
	worth := time.Duration(float64(b.waiting) / parts)
	b.waiting = 0
	return worth
}
