package lender

import (
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// mostAtOnce bounds what a container is believed to have been charged at a time beyond the
// time that has passed: work is charged before it runs.
const mostAtOnce = time.Second

// count adds what the container was charged since the last look. In the long run that is no more
// than the time that has passed, whatever the container claims. One that is not metered may have
// had the GPU all the time.
func (a *account) count(spent, passed time.Duration) {
	if !a.metered {
		a.charged += passed
		return
	}
	a.room = min(a.room+passed, mostAtOnce)
	a.untold = min(a.untold+spent, mostAtOnce)
	told := min(a.untold, a.room)
	a.untold -= told
	a.room -= told
	a.charged += told
}

// entitled returns the part of the GPU's time that the container may have, in parts per million.
func (a *account) entitled() uint32 {
	if !a.metered {
		return limits.NoComputeLimit
	}
	return a.rate()
}

// beside sets what each container of one GPU is to be told of all others.
func beside(accounts []*account) {
	var charged time.Duration
	var entitled uint64
	for _, a := range accounts {
		charged += a.charged
		entitled += uint64(a.entitled())
	}
	for _, a := range accounts {
		a.others = charged - a.charged
		a.othersPPM = uint32(min(entitled-uint64(a.entitled()), limits.NoComputeLimit))
	}
	for _, a := range accounts {
		a.charged = 0
	}
}
