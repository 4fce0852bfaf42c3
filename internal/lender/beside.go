// SPDX-License-Identifier: Apache-2.0

package lender

import (
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// mostAtOnce bounds the amount by which a container's charge at a check may exceed the elapsed
// time. The interposer charges work before the work runs.
const mostAtOnce = time.Second

// count adds the container's charge since the last check. Over time, count accepts no more charge
// than the elapsed time, whatever the container claims. A container that is not metered may have
// used the GPU all the time.
func (a *account) count(spent, passed time.Duration) {
	if !a.metered {
		a.charged += passed
		return
	}
	a.room = min(a.room+passed, mostAtOnce)
	a.unreported = min(a.unreported+spent, mostAtOnce)
	reported := min(a.unreported, a.room)
	a.unreported -= reported
	a.room -= reported
	a.charged += reported
}

// entitled returns the part of the GPU's time that the container may have, in parts per million.
func (a *account) entitled() uint32 {
	if !a.metered {
		return limits.NoComputeLimit
	}
	return a.rate()
}

// beside sets the charge and the part of all others for each container of one GPU.
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
