// Package timed runs tests that judge how long something took, or what part of a
// time something had, on machines whose processors others use as well.
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

// pauses come before a test's attempts: what else keeps the machine busy is given
// time to end.
var pauses = []time.Duration{0, time.Second, 5 * time.Second, 15 * time.Second}

// beside is how many attempts are made while others run; those after them have the
// test's process to themselves.
const beside = 2

// most is how many attempts may be made at a time; one that is made alone takes all
// places.
const most = 1000

var places = semaphore.NewWeighted(most)

// Run runs a test until it passes, at most four times. A machine that stands still
// for a second can make any judgement of time wrong, once; what the code under test
// does wrong it does wrong each time. The last two attempts have the process to
// themselves. What a failed attempt said is logged, and what the last one said are
// the test's errors.
//
// The test is given a testing.TB of its own attempt, and must use nothing else:
// what it registers with Cleanup runs when the attempt ends. It cannot be skipped.
func Run(t testing.TB, test func(testing.TB)) {
	t.Helper()
	var last []string
	for i, pause := range pauses {
		time.Sleep(pause)
		if last = turn(i, func() []string { return try(t, test) }); len(last) == 0 {
			return
		}
		t.Logf("attempt %d of %d failed:\n%s", i+1, len(pauses), strings.Join(last, "\n"))
	}
	t.Errorf("failed %d times, at last by:\n%s", len(pauses), strings.Join(last, "\n"))
}

// turn makes an attempt, beside others or alone.
func turn(number int, attempt func() []string) []string {
	weight := int64(1)
	if number >= beside {
		weight = most
	}
	_ = places.Acquire(context.Background(), weight) // fails with its context alone
	defer places.Release(weight)
	return attempt()
}

// Test is a part of a test that Run runs, beside other such parts: most of what is
// timed waits for a (simulated) GPU, not for processors.
func Test(test func(testing.TB)) func(*testing.T) {
	return func(t *testing.T) {
		t.Helper()
		t.Parallel()
		Run(t, test)
	}
}

// try is one attempt, and what it said if it failed.
func try(t testing.TB, test func(testing.TB)) []string {
	a := &attempt{TB: t}
	done := make(chan struct{})
	go func() { // FailNow ends the goroutine it is called in
		defer close(done)
		defer a.cleanUp()
		test(a)
	}()
	<-done
	return a.errors
}

// attempt is a test's own view of one attempt.
type attempt struct {
	testing.TB

	mu       sync.Mutex
	errors   []string // it has failed if there are any
	cleanups []func()
}

func (a *attempt) fail(message string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.errors = append(a.errors, strings.TrimRight(message, "\n"))
}

// Failed tells whether this attempt has failed so far.
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

// Skip and its like would end the wrong goroutine.
func (a *attempt) Skip(args ...any) { a.Fatal(append([]any{"skipped:"}, args...)...) }

// Skipf is as Skip.
func (a *attempt) Skipf(format string, args ...any) { a.Fatalf("skipped: "+format, args...) }

// SkipNow is as Skip.
func (a *attempt) SkipNow() { a.Fatal("skipped") }

// Cleanup has f called when the attempt ends, the last one first.
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
