// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

func TestBoundsAreDocumented(t *testing.T) {
	pace := acceptPace()
	documented.Bound(t, "messages to the agent's socket", documented.Bytes(maxMessage), documented.Time(messagePatience))
	documented.Bound(t, "descriptors in messages to the agent's socket", fmt.Sprintf("for %d messages at a time", mostClosers))
	documented.Bound(t, "connections to the agent's socket", documented.Count(int(pace.Limit()))+" accepted in a second",
		fmt.Sprintf("%d open, %d for each container", askBounds.all, askBounds.each))
	documented.Bound(t, "requests for GPUs and processes", fmt.Sprintf("%v a second, %d at once, for each container", askBounds.perSecond, askBounds.burst))
	documented.Bound(t, "answers that a client does not read", documented.Time(messagePatience))
	documented.Bound(t, "requests for the memory of a process",
		fmt.Sprintf("%v a second and %d open, for each container; %d open in all", heldBounds.perSecond, heldBounds.each, heldBounds.all))
	documented.Bound(t, "processes that register |",
		fmt.Sprintf("%d for each container, %s in all, or a quarter of the agent's descriptors", maxPerContainer, documented.Count(maxProcesses)))
	documented.Bound(t, "registered processes that the agent has not looked up", documented.Count(maxArrivals))
	documented.Bound(t, "a process's name, command line and entries in procfs",
		"reads "+documented.Bytes(maxProcFile)+" and reports "+documented.Bytes(maxCommand))
	documented.Bound(t, "waits for the driver", documented.Time(heldPatience)+" for a process")
}

// TestTheRegistryIsBounded checks that a container has at most 256 listed processes. The agent
// lists at most 4,096 processes, and at most a quarter of its limit of descriptors.
func TestTheRegistryIsBounded(t *testing.T) {
	for descriptors, want := range map[int]struct{ total, arrivals int }{
		1 << 20: {4096, 256}, 4 * 4096: {4096, 256}, 4*4096 - 4: {4095, 256}, 1024: {256, 64},
	} {
		r := newRegistry(descriptors)
		if r.perContainer != 256 || r.total != want.total || r.mostArrivals != want.arrivals {
			t.Errorf("with %d descriptors: %d of a container, %d in all and %d arrivals, want 256, %+v",
				descriptors, r.perContainer, r.total, r.mostArrivals, want)
		}
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if got, want := New().total, min(4096, int(min(limit.Cur, 1<<20)/4)); got != want {
		t.Errorf("with %d descriptors: %d in all, want %d", limit.Cur, got, want)
	}
}

// TestConnectionsArePaced checks that a flood of connections waits for the agent's pace. The
// connection of an unlisted process counts as four connections.
func TestConnectionsArePaced(t *testing.T) {
	for name, listed := range map[string]bool{"listed": true, "not listed": false} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			h.contain(os.Getpid(), id)
			l, err := openListener(h.Path, 0o666)
			if err != nil {
				t.Fatal(err)
			}
			defer l.close()
			want := 8/unknownAccepts + 1 // the last connection waits
			if listed {
				process, handle, err := h.Proc.Pin(os.Getpid())
				if err != nil {
					t.Fatal(err)
				}
				h.Registry.add(process, handle, nil)
				want = 8 + 1
			}
			const flood = 20
			for range flood {
				h.say(message(1, uint32(os.Getpid())))
			}
			// WaitN fails at once if ctx ends before enough tokens accumulate.
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			if err := h.acceptBatch(ctx, l, rate.NewLimiter(rate.Every(24*time.Hour), 8)); err == nil {
				t.Error("all were accepted")
			}
			if accepted := flood - waiting(t, l); accepted != want {
				t.Errorf("%d were accepted, want %d", accepted, want)
			}
		})
	}
}

// waiting accepts the connections that wait, and returns their number.
func waiting(t *testing.T, l *listener) (n int) {
	t.Helper()
	for ; ; n++ {
		c, ok, err := l.accept()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return n
		}
		unix.Close(c.fd)
	}
}

// TestPlacesAreBounded checks that containers may open connections one after another until all
// places are taken.
func TestPlacesAreBounded(t *testing.T) {
	for name, b := range map[string]bounds{"asking": askBounds, "asking what a process holds": heldBounds} {
		t.Run(name, func(t *testing.T) {
			var q queue
			for k := range b.all {
				if !q.enter(fmt.Sprint(k/b.each), b) {
					t.Fatalf("number %d of %d found no place", k, b.all)
				}
			}
			if q.enter("another", b) {
				t.Errorf("one more than %d found a place", b.all)
			}
			q.leave("0")
			if q.enter("1", b) || !q.enter("another", b) {
				t.Errorf("a container has more than %d places, or none after one was left", b.each)
			}
		})
	}
	h := newHouse(t)
	h.Holdings = &holder{}
	for k := range heldBounds.each + 1 {
		if got := h.mayHold(id); got != (k < heldBounds.each) {
			t.Errorf("question %d of a container: %v", k, got)
		}
	}
	for k := range heldBounds.all {
		h.mayHold(fmt.Sprint(k))
	}
	if got := h.holding.open(); got != heldBounds.all {
		t.Errorf("%d wait, want %d", got, heldBounds.all)
	}
}

// TestDescriptorsAreClosedAside checks that receive blocks only while the closing of 32 packets'
// descriptors hangs. The closing of a descriptor may hang forever.
func TestDescriptorsAreClosedAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		var begun atomic.Int32
		c := newClosers(func(int) { begun.Add(1); <-hang })
		control := unix.UnixRights(1<<30, 1<<30+1) // numbers of descriptors that do not exist
		for range mostClosers {
			c.drop(control)
			synctest.Wait()
		}
		if begun.Load() != 32 {
			t.Errorf("%d packets' descriptors are closed, want 32", begun.Load())
		}
		done := false
		go func() { c.drop(control); done = true }()
		synctest.Wait()
		if done || begun.Load() != 32 {
			t.Errorf("one packet more was not waited for: %d are closed", begun.Load())
		}
		c.drop(nil) // without descriptors
		close(hang)
		synctest.Wait()
		if !done || begun.Load() != 33*2 {
			t.Errorf("at last %d descriptors were closed", begun.Load())
		}
	})
}

// TestMessagesAreBounded checks that a message has at most 64 bytes, whatever size its header
// states.
func TestMessagesAreBounded(t *testing.T) {
	for length, want := range map[int]error{64: nil, 65: ErrMessage} {
		raw := append(message(3, 42), make([]byte, length-messageSize)...)
		raw[6] = byte(length)
		if _, err := ParseMessage(raw); !errors.Is(err, want) {
			t.Errorf("%d bytes: %v", length, err)
		}
		copy(raw, "NVGH")
		if _, err := ParseHeldQuestion(raw); !errors.Is(err, want) {
			t.Errorf("a question of %d bytes: %v", length, err)
		}
	}
}
