// SPDX-License-Identifier: Apache-2.0

package deadline

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestWorkIsNotWaitedForLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, hang := New(time.Second, 2), make(chan struct{})
		hangs := func() int { <-hang; return 1 }
		begin := time.Now()
		if _, err := Do(t.Context(), b, hangs); !errors.Is(err, ErrLate) || time.Since(begin) != time.Second {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		begin = time.Now()
		if _, err := Do(ctx, b, hangs); !errors.Is(err, ErrLate) || time.Since(begin) != time.Millisecond {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
		begin = time.Now()
		if _, err := Do(t.Context(), b, func() int { t.Error("it was begun"); return 0 }); !errors.Is(err, ErrFull) || time.Since(begin) != 0 {
			t.Errorf("with two hanging calls, after %v: %v", time.Since(begin), err)
		}
		close(hang)
		synctest.Wait()
		if got, err := Do(t.Context(), b, func() int { return 7 }); got != 7 || err != nil {
			t.Errorf("once they have ended: %d, %v", got, err)
		}
	})
}

// TestWhatHasEndedIsNotLate checks that Do returns a result that is ready when the time ends. On a
// busy machine both may be ready together.
func TestWhatHasEndedIsNotLate(t *testing.T) {
	for range 100 {
		result, late, done := make(chan int, 1), make(chan time.Time, 1), make(chan struct{})
		result <- 7
		late <- time.Now()
		close(done)
		if got, ok := await(result, late, done); got != 7 || !ok {
			t.Fatalf("got %d, %t", got, ok)
		}
	}
}

// TestBefore checks that the context ends before the caller's deadline, and with the caller's context.
func TestBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for remaining, want := range map[time.Duration]time.Duration{
			10 * time.Second: 10*time.Second - Margin,
			8 * Margin:       7 * Margin,
			4 * Margin:       3 * Margin,
			2 * Margin:       3 * Margin / 2,
			time.Millisecond: 3 * time.Millisecond / 4,
		} {
			outer, cancelOuter := context.WithTimeout(t.Context(), remaining)
			ctx, cancel := Before(outer)
			begin := time.Now()
			<-ctx.Done()
			if got := time.Since(begin); got != want || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				t.Errorf("with %v left, the work ends after %v, want %v: %v", remaining, got, want, ctx.Err())
			}
			cancel()
			cancelOuter()
		}
		outer, cancelOuter := context.WithCancel(t.Context())
		ctx, cancel := Before(outer)
		defer cancel()
		if end, ok := ctx.Deadline(); ok || ctx.Err() != nil {
			t.Errorf("without a deadline it ends at %v: %v", end, ctx.Err())
		}
		cancelOuter()
		if ctx.Err() == nil {
			t.Error("it does not end with the caller's context")
		}
	})
}
