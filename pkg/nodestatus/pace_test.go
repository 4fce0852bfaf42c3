// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"testing"
	"time"
)

func TestPaceRestores(t *testing.T) {
	p := newPace()
	now := time.Now()
	for i := range restoreBurst {
		if d := p.wait(true, now); d != 0 {
			t.Fatalf("restore %d waits %s", i+1, d)
		}
	}
	first := p.wait(true, now)
	if first <= 0 || first > restoreInterval {
		t.Fatalf("the fight goes on at full speed: wait is %s", first)
	}
	if again := p.wait(true, now); again != first {
		t.Errorf("asking again changed the wait from %s to %s", first, again)
	}
	if d := p.wait(false, now); d != 0 {
		t.Errorf("a change of the report waits %s because of other writers", d)
	}
	if d := p.wait(true, now.Add(restoreInterval)); d != 0 {
		t.Errorf("after the interval a restore still waits %s", d)
	}
}

func TestPaceFailures(t *testing.T) {
	p := newPace()
	now := time.Now()
	var last time.Duration
	for i := range 100 {
		p.failed(now)
		last = p.wait(false, now)
		longest := min(retryFirst<<min(i, 20), retryCap)
		if last > longest || last < longest*3/4 {
			t.Fatalf("after %d failures the wait is %s, want up to a quarter less than %s", i+1, last, longest)
		}
	}
	if d := p.wait(false, now.Add(last)); d != 0 {
		t.Errorf("after the wait it is another %s", d)
	}
	p.succeeded()
	if d := p.wait(false, now); d != 0 {
		t.Errorf("after a success the wait is %s", d)
	}
}
