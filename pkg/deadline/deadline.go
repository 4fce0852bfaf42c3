// Package deadline runs work that may hang, and stops waiting for it in time.
package deadline

import (
	"context"
	"errors"
	"fmt"
	"time"
)

var (
	// ErrLate is returned for work that did not end in time. It goes on.
	ErrLate = errors.New("it did not end in time")
	// ErrFull is returned for work that was not begun, as too much of what was
	// begun before has not ended.
	ErrFull = errors.New("too much before it has not ended")
)

// Bound limits how long work is waited for, and how much of it may run at once: work
// that never ends keeps a goroutine, and often a thread.
type Bound struct {
	patience time.Duration
	slots    chan struct{}
}

// New returns a bound on the time and the number of what runs.
func New(patience time.Duration, atOnce int) *Bound {
	return &Bound{patience, make(chan struct{}, atOnce)}
}

// Margin is how long before whoever asked stops waiting an answer is given: a late one
// is none.
const Margin = 300 * time.Millisecond

// Before returns a context that ends some time before another one does: by Margin, or
// a quarter of what is left.
func Before(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, end.Add(-min(Margin, time.Until(end)/4)))
}

// Do runs work, and returns its result if that comes within the bound and before ctx
// ends. Work that is late goes on by itself, and should look at ctx before it changes
// something.
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
	select {
	case r := <-result:
		return r, nil
	case <-timer.C:
	case <-ctx.Done():
	}
	return none, fmt.Errorf("%w (%v)", ErrLate, time.Since(begin).Round(time.Millisecond))
}
