// SPDX-License-Identifier: Apache-2.0

// Package deadline runs work that may hang, and bounds the wait for it.
package deadline

import (
	"context"
	"errors"
	"fmt"
	"time"
)

var (
	// ErrLate reports that the work did not end in time. The work continues.
	ErrLate = errors.New("the work did not end in time")
	// ErrFull reports that the work was not started because too much earlier work still runs.
	ErrFull = errors.New("too much earlier work still runs")
)

// Bound limits the wait for work, and the amount of concurrent work. Work that never ends
// keeps a goroutine, and often a thread.
type Bound struct {
	patience time.Duration
	slots    chan struct{}
}

// New returns a bound on the duration and on the number of concurrent calls.
func New(patience time.Duration, atOnce int) *Bound {
	return &Bound{patience, make(chan struct{}, atOnce)}
}

// Margin is the time between an answer and the caller's deadline. A later answer would be
// useless.
const Margin = 300 * time.Millisecond

// Before returns a context that ends before ctx: by Margin, or by a quarter of the remaining time
// if the quarter is less.
func Before(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, end.Add(-min(Margin, time.Until(end)/4)))
}

// Do runs work, and returns its result if work ends within the bound and before ctx. Late work
// continues, and should check ctx before changing state.
func Do[T any](ctx context.Context, b *Bound, work func() T) (T, error) {
	var none T
	select {
	case b.slots <- struct{}{}:
	default:
		return none, fmt.Errorf("%w: %d run", ErrFull, cap(b.slots))
	}
	result := make(chan T, 1)
	go func() {
		defer func() { <-b.slots }()
		result <- work()
	}()
	timer := time.NewTimer(b.patience)
	defer timer.Stop()
	begin := time.Now()
	if r, ok := await(result, timer.C, ctx.Done()); ok {
		return r, nil
	}
	return none, fmt.Errorf("%w (%v)", ErrLate, time.Since(begin).Round(time.Millisecond))
}

// await returns the result, or false if the time ends first. If a busy machine delayed this
// goroutine past the end of the time, the result counts, because the work ended in time.
func await[T any](result <-chan T, late <-chan time.Time, done <-chan struct{}) (T, bool) {
	select {
	case r := <-result:
		return r, true
	case <-late:
	case <-done:
	}
	select {
	case r := <-result:
		return r, true
	default:
		var none T
		return none, false
	}
}
