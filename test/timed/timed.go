// SPDX-License-Identifier: Apache-2.0

// Package timed runs tests that judge durations, or shares of time, on machines whose processors
// also run other programs.
package timed

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"
)

// pauses precede a test's attempts, so that other work on the machine can end.
var pauses = []time.Duration{0, time.Second, 5 * time.Second, 15 * time.Second}

// beside is the number of attempts beside other tests. Later attempts have the test's process to
// themselves.
const beside = 2

// most is the number of attempts that may run at a time. An attempt alone takes all places.
const most = 1000

var places = semaphore.NewWeighted(most)

// Run runs a test until it passes, at most four times. If the machine pauses for a second, any
// check of time may fail once. A defect of the code under test fails each attempt. The last two
// attempts have the process to themselves. Run logs the errors of failed attempts, and reports the
// errors of the last attempt as the errors of the test.
//
// The test gets a separate testing.TB for each attempt, and must use only this testing.TB.
// Functions registered with Cleanup run when the attempt ends. The test cannot be skipped.
func Run(t testing.TB, test func(testing.TB)) {
	t.Helper()
	var last *attempt
	for i, pause := range pauses {
		time.Sleep(pause)
		if last = turn(i, func() *attempt { return try(t, test) }); len(last.errors) == 0 {
			return
		}
		t.Logf("attempt %d of %d failed:\n%s", i+1, len(pauses), last.text())
		if last.defect {
			break
		}
	}
	t.Errorf("failed, at last by:\n%s", last.text())
}

// Defectf marks an attempt as failed by a defect that no pause of the machine can cause, such as a
// share above a limit. No further attempt follows.
func Defectf(t testing.TB, format string, args ...any) {
	t.Helper()
	if a, ok := t.(*attempt); ok {
		a.mu.Lock()
		a.defect = true
		a.mu.Unlock()
	}
	t.Errorf(format, args...)
}

// turn makes an attempt, beside other attempts or alone.
func turn(number int, try func() *attempt) *attempt {
	weight := int64(1)
	if number >= beside {
		weight = most
	}
	_ = places.Acquire(context.Background(), weight) // fails only when its context ends
	defer places.Release(weight)
	return try()
}

// Test returns a part of a test that Run runs beside other parts. Timed tests mostly wait for a
// (simulated) GPU, not for processors.
func Test(test func(testing.TB)) func(*testing.T) {
	return func(t *testing.T) {
		t.Helper()
		t.Parallel()
		Run(t, test)
	}
}

// try makes one attempt.
func try(t testing.TB, test func(testing.TB)) *attempt {
	a := &attempt{TB: t}
	done := make(chan struct{})
	go func() { // FailNow ends the goroutine it is called in
		defer close(done)
		defer a.cleanUp()
		test(a)
	}()
	<-done
	return a
}

// attempt is a test's own view of one attempt.
type attempt struct {
	testing.TB

	mu       sync.Mutex
	errors   []string // not empty if the attempt has failed
	defect   bool     // a further attempt is of no use
	cleanups []func()
}

// text returns the attempt's errors.
func (a *attempt) text() string { return strings.Join(a.errors, "\n") }

func (a *attempt) fail(message string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.errors = append(a.errors, strings.TrimRight(message, "\n"))
}

// Failed reports whether this attempt has failed so far.
func (a *attempt) Failed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.errors) > 0
}

// Fail marks the attempt as failed.
func (a *attempt) Fail() { a.fail("failed") }

// FailNow ends the attempt as failed.
func (a *attempt) FailNow() {
	a.Fail()
	runtime.Goexit()
}

// Error marks the attempt as failed, with a reason.
func (a *attempt) Error(args ...any) { a.fail(fmt.Sprintln(args...)) }

// Errorf marks the attempt as failed, with a reason.
func (a *attempt) Errorf(format string, args ...any) { a.fail(fmt.Sprintf(format, args...)) }

// Fatal ends the attempt as failed, with a reason.
func (a *attempt) Fatal(args ...any) {
	a.fail(fmt.Sprintln(args...))
	runtime.Goexit()
}

// Fatalf ends the attempt as failed, with a reason.
func (a *attempt) Fatalf(format string, args ...any) {
	a.fail(fmt.Sprintf(format, args...))
	runtime.Goexit()
}

// Skip fails the attempt, because the real Skip would end the wrong goroutine.
func (a *attempt) Skip(args ...any) { a.Fatal(append([]any{"skipped:"}, args...)...) }

// Skipf fails the attempt like Skip.
func (a *attempt) Skipf(format string, args ...any) { a.Fatalf("skipped: "+format, args...) }

// SkipNow fails the attempt like Skip.
func (a *attempt) SkipNow() { a.Fatal("skipped") }

// Cleanup registers f, which runs when the attempt ends. The last registered function runs first.
func (a *attempt) Cleanup(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cleanups = append(a.cleanups, f)
}

func (a *attempt) cleanUp() {
	for {
		a.mu.Lock()
		n := len(a.cleanups)
		if n == 0 {
			a.mu.Unlock()
			return
		}
		f := a.cleanups[n-1]
		a.cleanups = a.cleanups[:n-1]
		a.mu.Unlock()
		f()
	}
}
