// SPDX-License-Identifier: Apache-2.0

// Package loop contains the common parts of loops that run until a context ends. The parts sleep,
// wake up early, and log a lasting failure once.
package loop

import (
	"context"
	"time"
)

// Sleep waits for a duration. Sleep returns false if the context ends first.
func Sleep(ctx context.Context, duration time.Duration) bool {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// Wakeup is a channel that wakes the loop that receives from the channel. Several pending signals
// count as one signal.
type Wakeup chan struct{}

// NewWakeup returns a Wakeup without a pending signal.
func NewWakeup() Wakeup { return make(Wakeup, 1) }

// Signal wakes the loop immediately, or at its next receive. Signal never blocks.
func (w Wakeup) Signal() {
	select {
	case w <- struct{}{}:
	default:
	}
}
