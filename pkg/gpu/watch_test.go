// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestJudge(t *testing.T) {
	now := time.Now()
	healthy := GPU{UUID: "GPU-a", Healthy: true}
	known := GPU{UUID: "GPU-a", Healthy: true, RecoveryKnown: true}
	lost := GPU{UUID: "GPU-a", Reason: "lost"}
	tests := []struct {
		name    string
		gpu     GPU
		fault   *fault
		reason  string // "" is healthy
		forgets bool
	}{
		{"nothing was reported", healthy, nil, "", false},
		{"an XID, and the driver reports no recovery", healthy, &fault{number: 48, at: now.Add(-time.Hour)}, "XID 48, memory error that could not be corrected: reset", false},
		{"an XID that means nothing to us", healthy, &fault{number: 9999}, "XID 9999: reset", false},
		{"an XID, and the GPU is lost", lost, &fault{number: 79}, "lost, after XID 79, the GPU has fallen off the bus", false},
		{"the lost GPU is back", healthy, &fault{number: 79, down: true}, "", true},
		{"no recovery is due, but that may be to come", known, &fault{number: 95, at: now.Add(-settle + 1)}, "XID 95", false},
		{"no recovery is due", known, &fault{number: 95, at: now.Add(-settle)}, "", true},
		{"the driver requested a reset, which is done", known, &fault{number: 95, at: now, down: true}, "", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			faults := map[string]*fault{}
			if tt.fault != nil {
				faults["GPU-a"] = tt.fault
			}
			got := judge([]GPU{tt.gpu, {UUID: "GPU-b", Healthy: true}}, faults, now)
			if g := got[0]; g.Healthy != (tt.reason == "") || !strings.HasPrefix(g.Reason, tt.reason) || g.Healthy && g.Reason != "" {
				t.Errorf("got %+v, want %q", g, tt.reason)
			}
			if !got[1].Healthy {
				t.Errorf("the other GPU is %+v", got[1])
			}
			if _, remembered := faults["GPU-a"]; remembered == tt.forgets && tt.fault != nil {
				t.Errorf("the fault is remembered: %v", remembered)
			}
			if tt.fault != nil && !tt.gpu.Healthy && !tt.fault.down {
				t.Error("the record of the unhealthy GPU is lost")
			}
		})
	}
}

// reports is a driver that reports the events that the test sends.
type reports struct {
	events chan XID
	broken error // if set, Next returns broken at once
	calls  int
	hang   chan struct{} // if set, Next hangs until the test closes hang
	closed chan struct{}
}

func (r *reports) Next(patience time.Duration) (XID, error) {
	r.calls++
	if r.broken != nil {
		return XID{}, r.broken
	}
	if r.hang != nil {
		<-r.hang
	}
	select {
	case x := <-r.events:
		return x, nil
	case <-time.After(patience):
		return XID{}, ErrNoEvent
	}
}

func (r *reports) Close() { close(r.closed) }

// watch starts an inventory of two GPUs that receives the test's events. watch
// counts the requested refreshes.
func watch(t *testing.T, source *reports) (inv *Inventory, changes *int) {
	t.Helper()
	source.events, source.closed = make(chan XID, 1), make(chan struct{})
	inv = NewInventory(script(func() ([]GPU, error) { return two(), nil }), time.Second)
	mustRefresh(t, inv)
	changes = new(int)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		inv.Watch(ctx, source, WatchOptions{Ignored: []int{13, 154}, Changed: func() { *changes++ }, Log: slog.New(slog.DiscardHandler)})
		close(done)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		time.Sleep(eventPatience) // a call may still be running
		<-source.closed
	})
	return inv, changes
}

func unhealthy(inv *Inventory) string {
	var uuids []string
	for _, g := range inv.GPUs() {
		if !g.Healthy {
			uuids = append(uuids, g.UUID)
		}
	}
	return strings.Join(uuids, ",")
}

func TestXIDsMakeGPUsUnhealthy(t *testing.T) {
	tests := []struct {
		name      string
		xid       XID
		unhealthy string
		changes   int
	}{
		{"error of an application", XID{UUID: "GPU-a", Number: 13}, "", 0},
		{"critical", XID{UUID: "GPU-b", Number: 79}, "GPU-b", 1},
		{"error without a named GPU", XID{Number: 79}, "GPU-a,GPU-b", 1},
		{"error of an unknown GPU", XID{UUID: "GPU-x", Number: 79}, "", 1},
		{"a recovery action", XID{UUID: "GPU-a", Number: 154}, "", 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				source := &reports{}
				inv, changes := watch(t, source)
				source.events <- tt.xid
				synctest.Wait()
				if got := unhealthy(inv); got != tt.unhealthy {
					t.Errorf("unhealthy are %q, want %q", got, tt.unhealthy)
				}
				if *changes != tt.changes {
					t.Errorf("the GPUs were looked at %d times, want %d", *changes, tt.changes)
				}
				if diff := cmp.Diff(map[XID]uint64{tt.xid: 1}, inv.XIDs()); diff != "" {
					t.Error(diff)
				}
				// A refresh alone does not make the GPU healthy.
				mustRefresh(t, inv)
				if got := unhealthy(inv); got != tt.unhealthy {
					t.Errorf("after a look unhealthy are %q, want %q", got, tt.unhealthy)
				}
			})
		})
	}
}

func TestAnXIDIsNotMissedWhileTheDriverHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &reports{hang: make(chan struct{})}
		inv, changes := watch(t, source)
		source.events <- XID{UUID: "GPU-a", Number: 48}
		time.Sleep(time.Hour)
		if *changes != 1 {
			t.Errorf("in an hour of a hang the GPUs were looked at %d times for it, want once", *changes)
		}
		close(source.hang)
		synctest.Wait()
		if got := unhealthy(inv); got != "GPU-a" {
			t.Errorf("unhealthy are %q", got)
		}
	})
}

func TestAFailingDriverIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &reports{broken: errors.New("a GPU is lost")}
		inv, changes := watch(t, source)
		time.Sleep(10*eventRetry + 1)
		synctest.Wait()
		if source.calls != 11 || *changes != 1 {
			t.Errorf("in ten seconds it was asked %d times, and the GPUs were looked at %d times; want 11 and once", source.calls, *changes)
		}
		source.broken = nil
		source.events <- XID{UUID: "GPU-a", Number: 79}
		time.Sleep(eventRetry)
		synctest.Wait()
		if got := unhealthy(inv); got != "GPU-a" {
			t.Errorf("unhealthy are %q", got)
		}
	})
}
