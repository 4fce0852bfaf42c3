// SPDX-License-Identifier: Apache-2.0

package selfcheck

import (
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// longestWait bounds the busy time that a GPU accumulates until a sample names a process.
const longestWait = time.Second

// busy divides a GPU's busy time among the processes that its samples name. Drivers measure the
// GPU's load in each period, and name the process that is active at the period's end. If no process
// is active at that moment, the samples name no process. The processes' parts then add up to less
// than the GPU's load.
type busy struct {
	last    time.Time // the end of the last period
	waiting time.Duration
}

// add adds the GPU's own samples until a time, and reports whether samples exist.
func (b *busy) add(loads []gpu.Load, until time.Time) bool {
	any := false
	if b.last.After(until) {
		b.last = time.Time{} // the node's clock was set back
	}
	for _, l := range loads {
		if !l.At.After(b.last) || l.At.After(until) || l.Percent > 100 {
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

// scale returns the busy time that a part of 1 represents. The argument parts is the sum of the
// parts that the samples report.
func (b *busy) scale(parts float64) time.Duration {
	if parts == 0 {
		b.waiting = min(b.waiting, longestWait)
		return 0
	}
	worth := time.Duration(float64(b.waiting) / parts)
	b.waiting = 0
	return worth
}
