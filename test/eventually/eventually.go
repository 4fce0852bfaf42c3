// SPDX-License-Identifier: Apache-2.0

// Package eventually waits in tests for effects of other goroutines, processes or nodes, instead of
// sleeping.
//
// Each function checks immediately, then less and less often, and a last time when the patience
// ends. The checks take a small part of a processor, because the effects may also need the
// processors.
package eventually

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

const (
	// A check may be late by 1/lateness of the wait.
	lateness = 20
	// Checks take at most 1/parts of a processor, until latest bounds the pause.
	parts = 20
	// soonest and latest bound the time between two checks.
	soonest = time.Millisecond
	latest  = 200 * time.Millisecond
)

// Holds waits until a condition holds, and fails the test if patience runs out first. what names
// the condition, as in "the daemon is ready".
func Holds(t testing.TB, patience time.Duration, what string, condition func() bool) {
	t.Helper()
	if err := Wait(patience, what, condition); err != nil {
		t.Fatal(err)
	}
}

// Succeeds waits until a check returns no error. If patience runs out first, the test ends with the
// check's last error. The check's context ends with the patience.
func Succeeds(t testing.TB, patience time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := Check(t.Context(), patience, func() error { return check(ctx) }); err != nil {
		t.Fatalf("not within %v: %s: %v", patience, what, err)
	}
}

// Wait waits until a condition holds. If patience runs out first, Wait returns an error that names
// the condition.
func Wait(patience time.Duration, what string, condition func() bool) error {
	err := Check(context.Background(), patience, func() error {
		if condition() {
			return nil
		}
		return errNot
	})
	if err != nil {
		return fmt.Errorf("not within %v: %s", patience, what)
	}
	return nil
}

var errNot = errors.New("the condition does not hold")

// Check waits until a check returns no error. If patience runs out or the context ends first, Check
// returns the check's last error.
func Check(ctx context.Context, patience time.Duration, check func() error) error {
	begin := time.Now()
	for {
		checked := time.Now()
		err := check()
		waited, took := time.Since(begin), time.Since(checked)
		if err == nil || waited >= patience {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause(waited, took, patience)):
		}
	}
}

// pause returns the time until the next check, after a check that took some time.
func pause(waited, took, patience time.Duration) time.Duration {
	return min(patience-waited, latest, max(soonest, waited/lateness, (parts-1)*took))
}
