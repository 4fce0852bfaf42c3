// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestAQueueHasPlacesForAllAndForEach(t *testing.T) {
	var q queue
	b := bounds{all: 3, each: 2}
	for _, step := range []struct {
		container string
		leave     bool
		want      bool
		open      int
	}{
		{"a", false, true, 1},
		{"a", false, true, 2},
		{"a", false, false, 2}, // the container has all of its places
		{"b", false, true, 3},
		{"c", false, false, 3}, // all places are taken
		{"b", true, false, 2},
		{"a", false, false, 2},
		{"c", false, true, 3},
		{"a", true, false, 2},
		{"a", false, true, 3},
	} {
		if step.leave {
			q.leave(step.container)
		} else if got := q.enter(step.container, b); got != step.want {
			t.Fatalf("%s enters: %t", step.container, got)
		}
		if got := q.open(); got != step.open {
			t.Fatalf("%d are open, want %d", got, step.open)
		}
	}
	for _, container := range []string{"a", "a", "c"} {
		q.leave(container)
	}
	if q.open() != 0 || len(q.waiting) != 0 {
		t.Errorf("%d are open, of %v", q.open(), q.waiting)
	}
}

func TestAContainerAsksAtItsPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q queue
		b := bounds{perSecond: 10, burst: 2}
		may := func(container string, want bool) {
			t.Helper()
			if got := q.mayAsk(container, b); got != want {
				t.Errorf("%v: %s may ask: %t", time.Now(), container, got)
			}
		}
		may("a", true)
		may("a", true)
		may("a", false)
		may("b", true)
		time.Sleep(100 * time.Millisecond)
		may("a", true)
		may("a", false)
		q.sweep() // sweep drops b, which has not asked lately
		if len(q.paces) != 1 || q.paces["a"] == nil {
			t.Errorf("the paces of %v are kept, want a's", q.paces)
		}
		time.Sleep(200 * time.Millisecond)
		if q.sweep(); len(q.paces) != 0 {
			t.Errorf("the paces of %v are kept", q.paces)
		}
	})
}
