package main

import (
	"context"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A machine of which the processors are lent by another one does not always run:
// its processors stand still for milliseconds, and with them every program. What
// a container loses by that no limiter can give it.
const (
	stallPeriod   = time.Millisecond // between two looks of a processor at the clock
	stallLeast    = time.Millisecond // later than this: it stood still
	stallPriority = 50               // above all programs that are measured
)

// stall is a stretch of time in which a processor stood still, by the clock that
// the oracle has.
type stall struct{ from, to time.Duration }

type stalls []stall

// within is how long processors stood still from one instant to another, over all
// of them.
func (s stalls) within(from, to time.Duration) (sum time.Duration) {
	for _, one := range s {
		sum += max(0, min(to, one.to)-max(from, one.from))
	}
	return sum
}

// stallWatch looks at the clock on each processor, before everything else there.
type stallWatch struct {
	cancel context.CancelFunc
	ended  sync.WaitGroup
	mutex  sync.Mutex
	seen   stalls
}

// watchStalls begins to watch. Without the right to go before other programs it
// sees nothing.
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

// stop ends the watch and returns what it saw.
func (w *stallWatch) stop() stalls {
	w.cancel()
	w.ended.Wait()
	return w.seen
}

func (w *stallWatch) watch(ctx context.Context, cpu int) {
	runtime.LockOSThread() // for good: the thread ends with us, and its priority
	var only unix.CPUSet
	only.Set(cpu)
	if unix.SchedSetaffinity(0, &only) != nil || unix.SchedSetAttr(0, &unix.SchedAttr{
		Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: stallPriority}, 0) != nil {
		return
	}
	pause := unix.NsecToTimespec(int64(stallPeriod))
	for ctx.Err() == nil {
		from := monotonic()
		_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &pause, nil) // woken early it is not late
		if to := monotonic(); to-from-stallPeriod > stallLeast {
			w.mutex.Lock()
			w.seen = append(w.seen, stall{from + stallPeriod, to})
			w.mutex.Unlock()
		}
	}
}

func monotonic() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // it cannot fail
	return time.Duration(now.Nano())
}
