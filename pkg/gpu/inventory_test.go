// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

// script is a driver with a scripted answer.
type script func() ([]GPU, error)

func (s script) List() ([]GPU, error) { return s() }

func (s script) Processes() (map[string][]Process, error) {
	return map[string][]Process{"GPU-a": {{PID: 1}}}, nil
}

func (s script) Loads(time.Time) (map[string][]Load, error) { return nil, nil }

func (s script) Samples(time.Time) (map[string][]Sample, error) {
	return map[string][]Sample{"GPU-a": {{PID: 1, At: time.Now(), Percent: 40}}}, nil
}

func two() []GPU {
	return []GPU{
		{UUID: "GPU-a", Index: 0, MemoryBytes: 1, Healthy: true},
		{UUID: "GPU-b", Index: 1, Minor: 1, MemoryBytes: 2, Healthy: true},
	}
}

func TestMerge(t *testing.T) {
	const gone = "the driver no longer lists this GPU"
	lost := func(g GPU, reason string) GPU { g.Healthy, g.Reason = false, reason; return g }
	tests := []struct {
		name              string
		known, seen, want []GPU
	}{
		{"first", nil, two(), two()},
		{"again", two(), two(), two()},
		{"recovered", []GPU{lost(two()[0], "x"), two()[1]}, two(), two()},
		{"one vanished", two(), two()[1:], []GPU{lost(two()[0], gone), two()[1]}},
		{"one lost its name", two(), []GPU{two()[0], {Index: 1, Reason: "lost"}}, []GPU{two()[0], lost(two()[1], "lost")}},
		{
			"one lost its name, and another took its index",
			[]GPU{two()[0], two()[1], {UUID: "GPU-c", Index: 2, MemoryBytes: 3, Healthy: true}},
			[]GPU{{UUID: "GPU-b", MemoryBytes: 2, Healthy: true}, {Index: 1, Reason: "lost"}},
			[]GPU{{UUID: "GPU-b", MemoryBytes: 2, Healthy: true}, lost(two()[0], gone), lost(GPU{UUID: "GPU-c", Index: 2, MemoryBytes: 3}, gone)},
		},
		{"one never had a name", nil, []GPU{two()[0], {Index: 1, Reason: "lost"}}, two()[:1]},
		{
			"renumbered",
			two(),
			[]GPU{{UUID: "GPU-b", Index: 0, Healthy: true}, {UUID: "GPU-a", Index: 1, Healthy: true}},
			[]GPU{{UUID: "GPU-b", Index: 0, Healthy: true}, {UUID: "GPU-a", Index: 1, Healthy: true}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, merge(tt.known, tt.seen, tt.seen)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestAGPUKeepsItsProperties checks that a GPU keeps the properties that the driver returned last, while
// the driver fails to return them. The same applies to a GPU that the node does not offer.
func TestAGPUKeepsItsProperties(t *testing.T) {
	seen := two()
	inv := NewInventory(script(func() ([]GPU, error) { return slices.Clone(seen), nil }), 0)
	inv.Select(Selection{Offers: func(g GPU) bool { return g.MemoryBytes != 2 }})
	mustRefresh(t, inv)
	for k, g := range seen {
		seen[k] = GPU{UUID: g.UUID, Index: g.Index + 2, Reason: "failed"}
	}
	mustRefresh(t, inv)
	want := two()
	for k := range want {
		want[k].Index, want[k].Healthy, want[k].Reason = k+2, false, "failed"
	}
	if diff := cmp.Diff(want, slices.Concat(inv.GPUs(), inv.LeftOut())); diff != "" {
		t.Error(diff)
	}
}

func TestAFailingDriverMakesGPUsUnhealthy(t *testing.T) {
	broken := errors.New("no driver")
	var fail error
	inv := NewInventory(script(func() ([]GPU, error) { return two(), fail }), 0)
	if _, err := inv.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	fail = broken
	gpus, err := inv.Refresh(t.Context())
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	for _, g := range gpus {
		if g.Healthy || g.Reason != "no driver" || g.MemoryBytes == 0 {
			t.Errorf("got %+v", g)
		}
	}
	fail = nil
	if _, err := inv.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(two(), inv.GPUs()); diff != "" {
		t.Error(diff)
	}
}

func TestAHangingDriverHangsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		var hang chan struct{}
		inv := NewInventory(script(func() ([]GPU, error) {
			calls.Add(1)
			if hang != nil {
				<-hang
			}
			return two(), nil
		}), time.Second)
		mustRefresh(t, inv)

		hang = make(chan struct{})
		for range 3 {
			begin := time.Now()
			gpus, err := inv.Refresh(context.Background())
			if err == nil || !strings.Contains(err.Error(), "not answer") {
				t.Errorf("got %v", err)
			}
			if waited := time.Since(begin); waited > time.Second {
				t.Errorf("waited %v", waited)
			}
			if len(gpus) != 2 || gpus[0].Healthy || gpus[1].Healthy {
				t.Errorf("got %+v", gpus)
			}
		}
		if calls := calls.Load(); calls != 2 {
			t.Errorf("%d calls were made of a driver that hangs in the second", calls)
		}
		close(hang)
		synctest.Wait()
		mustRefresh(t, inv)
		if diff := cmp.Diff(two(), inv.GPUs()); diff != "" {
			t.Error(diff)
		}
	})
}

// TestALookIsWaitedForTenSeconds checks that a refresh takes at most 10 s, and that readers of the
// last state do not wait for the query.
func TestALookIsWaitedForTenSeconds(t *testing.T) {
	documented.Bound(t, "waits for the driver", documented.Time(DefaultTimeout)+" for a list of the GPUs")
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		defer close(hang)
		inv := NewInventory(script(func() ([]GPU, error) { <-hang; return nil, nil }), 0)
		inv.gpus = two()
		begin, done := time.Now(), make(chan struct{})
		go func() { _, _ = inv.Refresh(t.Context()); close(done) }()
		synctest.Wait()
		if got := inv.GPUs(); len(got) != 2 || time.Since(begin) != 0 {
			t.Errorf("after %v: %+v", time.Since(begin), got)
		}
		<-done
		if took := time.Since(begin); took != 10*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

func mustRefresh(t *testing.T, inv *Inventory) {
	t.Helper()
	if _, err := inv.Refresh(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// TestQuestionsTakeTurns checks that concurrent queries run one after another, and that no query
// mistakes another query for a hanging driver.
func TestQuestionsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inv := NewInventory(script(func() ([]GPU, error) {
			time.Sleep(time.Second)
			return two(), nil
		}), 10*time.Second)
		done := make(chan struct{})
		go func() { mustRefresh(t, inv); close(done) }()
		synctest.Wait()
		begin := time.Now()
		if processes, err := inv.Processes(context.Background()); err != nil || len(processes) != 1 {
			t.Errorf("got %v, %v", processes, err)
		}
		if waited := time.Since(begin); waited != time.Second {
			t.Errorf("waited %v for a call of a second", waited)
		}
		<-done
	})
}

// TestAHangingDriverListsNoProcesses checks that a query fails at once while the driver hangs, and
// succeeds after the driver has recovered.
func TestAHangingDriverListsNoProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		inv := NewInventory(script(func() ([]GPU, error) { <-hang; return two(), nil }), time.Second)
		if _, err := inv.Refresh(context.Background()); err == nil {
			t.Error("a driver that hangs answered")
		}
		if _, err := inv.Processes(context.Background()); err == nil || !strings.Contains(err.Error(), "not answer") {
			t.Errorf("got %v", err)
		}
		close(hang)
		synctest.Wait()
		if _, err := inv.Processes(context.Background()); err != nil {
			t.Error(err)
		}
	})
}
