// SPDX-License-Identifier: Apache-2.0

package timed

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// recorder is a testing.TB that records a test's messages.
type recorder struct {
	testing.TB
	said []string
}

func (r *recorder) Helper() {}
func (r *recorder) Logf(format string, args ...any) {
	r.said = append(r.said, "log: "+fmt.Sprintf(format, args...))
}
func (r *recorder) Errorf(format string, args ...any) {
	r.said = append(r.said, fmt.Sprintf(format, args...))
}

func TestRun(t *testing.T) {
	const often = 4
	for _, c := range []struct {
		name string
		test func(t testing.TB, attempt int)
		want []string
	}{
		{"passes at once", func(testing.TB, int) {}, nil},
		{"passes in the end", func(t testing.TB, attempt int) {
			if attempt < often {
				t.Errorf("%d is too early", attempt)
			}
		}, []string{
			"log: attempt 1 of 4 failed:\n1 is too early",
			"log: attempt 2 of 4 failed:\n2 is too early",
			"log: attempt 3 of 4 failed:\n3 is too early",
		}},
		{"never passes", func(t testing.TB, attempt int) {
			t.Error("wrong", attempt)
			if !t.Failed() {
				t.Error("the attempt is not marked as failed")
			}
			t.Fatal("it ends")
			t.Error("it goes on")
		}, []string{
			"log: attempt 1 of 4 failed:\nwrong 1\nit ends",
			"log: attempt 2 of 4 failed:\nwrong 2\nit ends",
			"log: attempt 3 of 4 failed:\nwrong 3\nit ends",
			"log: attempt 4 of 4 failed:\nwrong 4\nit ends",
			"failed, at last by:\nwrong 4\nit ends",
		}},
		{"fails by a defect", func(t testing.TB, attempt int) {
			Defectf(t, "%d is too much", attempt)
		}, []string{
			"log: attempt 1 of 4 failed:\n1 is too much",
			"failed, at last by:\n1 is too much",
		}},
		{"fails without a word", func(t testing.TB, attempt int) {
			if attempt == 1 {
				t.FailNow()
			}
		}, []string{"log: attempt 1 of 4 failed:\nfailed"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, attempts := &recorder{TB: t}, 0
				Run(r, func(t testing.TB) { attempts++; c.test(t, attempts) })
				if !slices.Equal(r.said, c.want) {
					t.Errorf("the test logged %q, want %q", r.said, c.want)
				}
			})
		})
	}
}

// TestCleanup checks that an attempt's cleanups run before the next attempt begins, the last
// cleanup first. The attempt may end early.
func TestCleanup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []int
		Run(&recorder{TB: t}, func(t testing.TB) {
			t.Cleanup(func() { order = append(order, 2) })
			t.Cleanup(func() {
				order = append(order, 1)
				t.Cleanup(func() { order = append(order, 3) })
			})
			if len(order) == 0 {
				t.FailNow()
			}
		})
		if want := []int{1, 3, 2, 1, 3, 2}; !slices.Equal(order, want) {
			t.Errorf("cleaned up in the order %v, want %v", order, want)
		}
	})
}

// TestAloneInTheEnd checks that after two failed attempts, attempts of other parts do not disturb a
// third attempt.
func TestAloneInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running atomic.Int32
		var parts sync.WaitGroup
		seen := make([]int32, len(pauses)) // by attempt, how many ran at a time
		for part := range 2 {
			parts.Go(func() {
				attempts := 0
				Run(&recorder{TB: t}, func(t testing.TB) {
					running.Add(1)
					defer running.Add(-1)
					time.Sleep(time.Minute)
					if part == 0 {
						seen[attempts] = running.Load()
					}
					attempts++
					time.Sleep(time.Minute)
					t.Error("once more")
				})
			})
		}
		parts.Wait()
		if want := []int32{2, 2, 1, 1}; !slices.Equal(seen, want) {
			t.Errorf("%v attempts ran at a time, want %v", seen, want)
		}
	})
}
