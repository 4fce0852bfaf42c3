// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		if slept := Sleep(t.Context(), time.Hour); !slept || time.Since(begin) != time.Hour {
			t.Errorf("slept %t for %v", slept, time.Since(begin))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin = time.Now()
		if slept := Sleep(ctx, time.Hour); slept || time.Since(begin) != time.Minute {
			t.Errorf("slept %t for %v, though the context ended", slept, time.Since(begin))
		}
	})
}

func TestSignalsMerge(t *testing.T) {
	w := NewWakeup()
	woken := func() bool {
		select {
		case <-w:
			return true
		default:
			return false
		}
	}
	if woken() {
		t.Error("woken without a signal")
	}
	for range 3 {
		w.Signal()
	}
	if !woken() || woken() {
		t.Error("three signals do not wake once")
	}
	if w.Signal(); !woken() {
		t.Error("not woken again")
	}
}

func TestFailure(t *testing.T) {
	var f Failure
	a, again, b := errors.New("a"), errors.New("a"), errors.New("b")
	for i, step := range []struct {
		err  error
		want Change
	}{
		{nil, Unchanged}, {a, Failed}, {again, Unchanged}, {b, Failed}, {b, Unchanged}, {a, Failed},
		{nil, Recovered}, {nil, Unchanged}, {a, Failed}, {errors.New(""), Failed}, {nil, Recovered},
	} {
		if got := f.Note(step.err); got != step.want {
			t.Errorf("step %d: noting %v changed %d, want %d", i, step.err, got, step.want)
		}
	}
}

func TestFailuresAreApart(t *testing.T) {
	var f Failures
	a := errors.New("a")
	if got := []Change{f.Note("x", a), f.Note("y", a), f.Note("x", a), f.Note("y", nil), f.Note("z", nil)}; !cmp.Equal(got, []Change{Failed, Failed, Unchanged, Recovered, Unchanged}) {
		t.Errorf("got %v", got)
	}
	if want := (Failures{"x": "a"}); !cmp.Equal(f, want) {
		t.Errorf("got %v, want %v", f, want)
	}
}
