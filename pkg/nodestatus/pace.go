// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"math/rand/v2"
	"time"

	"golang.org/x/time/rate"
)

const (
	// restoreBurst is the number of changes by other programs that the patcher reverts immediately.
	// The patcher reverts later changes one per restoreInterval. Only a program that keeps writing
	// the patcher's keys reaches the limit; kubelet and operators stay far below the limit.
	restoreBurst    = 20
	restoreInterval = 6 * time.Second

	retryFirst = 200 * time.Millisecond
	retryCap   = 10 * time.Second
)

// pace decides when the patcher may send the next write.
type pace struct {
	restores  *rate.Limiter
	failures  int
	notBefore time.Time
}

func newPace() *pace {
	return &pace{restores: rate.NewLimiter(rate.Every(restoreInterval), restoreBurst)}
}

// wait returns the time that a write must wait, or 0. wait limits only restores: writes for the
// agent's own changes never compete with another writer.
func (p *pace) wait(restore bool, now time.Time) time.Duration {
	if d := p.notBefore.Sub(now); d > 0 {
		return d
	}
	if !restore {
		return 0
	}
	r := p.restores.ReserveN(now, 1)
	d := r.DelayFrom(now)
	if d > 0 {
		r.CancelAt(now)
	}
	return d
}

// failed doubles the wait before the next attempt, up to retryCap. failed
// subtracts up to a quarter at random, so that the nodes of a cluster do not
// retry together.
func (p *pace) failed(now time.Time) {
	d := min(retryFirst<<min(p.failures, 10), retryCap)
	p.failures++
	p.notBefore = now.Add(d - rand.N(d/4))
}

func (p *pace) succeeded() {
	p.failures = 0
	p.notBefore = time.Time{}
}
