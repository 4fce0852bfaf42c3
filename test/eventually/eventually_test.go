// SPDX-License-Identifier: Apache-2.0

package eventually

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// record is a testing.TB that records the end of a test.
type record struct {
	testing.TB
	failure string
}

func (r *record) Helper() {}

func (r *record) Fatal(args ...any) { r.failure = fmt.Sprint(args...) }

func (r *record) Fatalf(format string, args ...any) { r.failure = fmt.Sprintf(format, args...) }

func TestHolds(t *testing.T) {
	for name, tt := range map[string]struct {
		after time.Duration // when the condition holds
		want  string
	}{
		"at once":         {0, ""},
		"later":           {3 * time.Second, ""},
		"at the last":     {10 * time.Second, ""},
		"a moment later":  {10*time.Second + 1, "not within 10s: the sun is up"},
		"not in our time": {time.Hour, "not within 10s: the sun is up"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, begin := &record{TB: t}, time.Now()
				Holds(r, 10*time.Second, "the sun is up", func() bool { return time.Since(begin) >= tt.after })
				took := time.Since(begin)
				if r.failure != tt.want || took > 10*time.Second || tt.want == "" && took > tt.after+tt.after/lateness+soonest {
					t.Errorf("got %q after %v, want %q", r.failure, took, tt.want)
				}
			})
		})
	}
}

func TestLooksGetRarer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, last, looks := time.Now(), time.Now(), 0
		_ = Wait(time.Minute, "never", func() bool {
			if between := time.Since(last); between > latest || looks > 0 && time.Since(begin) < time.Minute && between < soonest {
				t.Errorf("look %d comes %v after the last", looks, between)
			}
			last = time.Now()
			looks++
			return false
		})
		if looks > 450 || last.Sub(begin) != time.Minute {
			t.Errorf("%d looks, the last after %v", looks, last.Sub(begin))
		}
	})
}

func TestSlowChecksGetRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const cost = 5 * time.Millisecond
		checks := 0
		_ = Wait(2*time.Second, "never", func() bool {
			time.Sleep(cost)
			checks++
			return false
		})
		if spent := time.Duration(checks) * cost; spent > 2*time.Second/parts+2*cost {
			t.Errorf("%d checks took %v of 2s", checks, spent)
		}
	})
}

func TestSucceedsReportsTheLastError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, begin := &record{TB: t}, time.Now()
		Succeeds(r, time.Second, "the sun is up", func(context.Context) error {
			return fmt.Errorf("dark for %v", time.Since(begin))
		})
		if want := "not within 1s: the sun is up: dark for 1s"; r.failure != want {
			t.Errorf("got %q, want %q", r.failure, want)
		}
		r.failure = ""
		if Succeeds(r, time.Second, "the sun is up", func(context.Context) error { return nil }); r.failure != "" {
			t.Errorf("got %q", r.failure)
		}
	})
}

func TestCheckEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin, dark := time.Now(), errors.New("dark")
		if err := Check(ctx, time.Hour, func() error { return dark }); !errors.Is(err, dark) || time.Since(begin) != time.Second {
			t.Errorf("got %v after %v", err, time.Since(begin))
		}
	})
}
