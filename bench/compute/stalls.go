// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The processors of a virtual machine sometimes stall for milliseconds. During a stall, no program
// runs. No limiter can compensate a container for a stall.
const (
	stallPeriod   = time.Millisecond // between two readings of the clock on a processor
	stallLeast    = time.Millisecond // a greater delay is a stall
	stallPriority = 50               // above all measured programs
)

// stall is a period in which a processor stalled. The times are of the oracle's clock.
type stall struct{ from, to time.Duration }

type stalls []stall

// within returns the stalled time between two instants, summed over all
// processors.
func (s stalls) within(from, to time.Duration) (sum time.Duration) {
	for _, one := range s {
		sum += max(0, min(to, one.to)-max(from, one.from))
	}
	return sum
}

// stallWatch reads the clock on each processor, with priority over all other programs on the
// processor.
type stallWatch struct {
	cancel context.CancelFunc
	ended  sync.WaitGroup
	mutex  sync.Mutex
	seen   stalls
}

// watchStalls starts a watch. A watch without the right to raise its priority records nothing.
func watchStalls(ctx context.Context) *stallWatch {
	ctx, cancel := context.WithCancel(ctx)
	w := &stallWatch{cancel: cancel}
	var all unix.CPUSet
	if unix.SchedGetaffinity(0, &all) != nil {
		return w
	}
	for cpu := range len(all) * 64 {
		if all.IsSet(cpu) {
			w.ended.Go(func() { w.watch(ctx, cpu) })
		}
	}
	return w
}

// stop ends the watch and returns the recorded stalls.
func (w *stallWatch) stop() stalls {
	w.cancel()
	w.ended.Wait()
	return w.seen
}

func (w *stallWatch) watch(ctx context.Context, cpu int) {
	runtime.LockOSThread() // permanently: the priority ends with the thread, and the thread ends with this goroutine
	var only unix.CPUSet
	only.Set(cpu)
	if unix.SchedSetaffinity(0, &only) != nil || unix.SchedSetAttr(0, &unix.SchedAttr{
		Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: stallPriority}, 0) != nil {
		return
	}
	pause := unix.NsecToTimespec(int64(stallPeriod))
	for ctx.Err() == nil {
		from := monotonic()
		_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &pause, nil) // an early wake-up is not late
		if to := monotonic(); to-from-stallPeriod > stallLeast {
			w.mutex.Lock()
			w.seen = append(w.seen, stall{from + stallPeriod, to})
			w.mutex.Unlock()
		}
	}
}

func monotonic() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // the call cannot fail
	return time.Duration(now.Nano())
}
