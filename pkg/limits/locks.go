// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lockBudget bounds the processor time that one read spends on a page's locks. Reading
	// 1,024 slots held by as many processes takes a fifth of the budget.
	lockBudget = 10 * time.Millisecond
	// restFactor is the pause between reads of a page after a read exceeded the budget, as a
	// multiple of the read's processor time. Therefore the locks of one page cost at most a
	// hundredth of a processor, even if the kernel takes long for a single query.
	restFactor = 100
	maxRest    = time.Minute
)

// heldSlots queries the kernel for the locked slots among the first slots of a usage page.
//
// The kernel walks all locks of the file for each query, and a tenant can create as many locks as
// fit in its memory. Therefore heldSlots makes few queries. Each query covers a range and returns
// one lock in the range; the parts of the range on both sides of the lock remain. heldSlots
// measures the cost as the thread's processor time. The kernel walks the locks without sleeping,
// and the time of other threads reveals nothing about the page.
func heldSlots(f *os.File, slots int64) ([]bool, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return searchSlots(slots, func(r slotRange) (slotRange, error) { return lockedIn(f, r) }, threadTime)
}

// searchSlots reports for each of the first slots whether a process has locked the slot. locked
// returns the slots of a range that one lock covers. now returns the processor time that the thread
// has used.
func searchSlots(slots int64, locked func(slotRange) (slotRange, error), now func() time.Duration) ([]bool, error) {
	begin := now()
	held := make([]bool, slots)
	for ranges := []slotRange{{0, slots}}; len(ranges) > 0; {
		r := ranges[len(ranges)-1]
		ranges = ranges[:len(ranges)-1]
		hit, err := locked(r)
		if err != nil {
			return nil, err
		}
		for i := hit.from; i < hit.to; i++ {
			held[i] = true
		}
		if !hit.empty() {
			ranges = appendUnlessEmpty(ranges, slotRange{hit.to, r.to}, slotRange{r.from, hit.from})
		}
		if took := now() - begin; took > lockBudget {
			return nil, fmt.Errorf("%w: its locks took %v", ErrBusy, took.Round(time.Millisecond))
		}
	}
	return held, nil
}

// threadTime returns the processor time of the calling thread.
func threadTime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		panic(err) // Linux has had this clock since 2.6.12
	}
	return time.Duration(now.Nano())
}

// slotRange is the range of slots that starts at from and ends before to.
type slotRange struct{ from, to int64 }

func (r slotRange) empty() bool { return r.from >= r.to }

func appendUnlessEmpty(ranges []slotRange, more ...slotRange) []slotRange {
	for _, r := range more {
		if !r.empty() {
			ranges = append(ranges, r)
		}
	}
	return ranges
}

// lockedIn returns the slots of a range that one lock covers or touches. lockedIn returns
// an empty range if no lock lies in the range.
func lockedIn(f *os.File, r slotRange) (slotRange, error) {
	if r.empty() {
		return slotRange{}, nil
	}
	lock := unix.Flock_t{
		Type: unix.F_RDLCK, Whence: io.SeekStart,
		Start: slotsOffset + r.from*slotSize, Len: (r.to - r.from) * slotSize,
	}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return slotRange{}, fmt.Errorf("find the owners of slots: %w", err)
	}
	if lock.Type == unix.F_UNLCK {
		return slotRange{}, nil
	}
	hit := slotRange{max(r.from, (lock.Start-slotsOffset)/slotSize), r.to}
	if last := lock.Start + lock.Len - 1; lock.Len > 0 { // a lock of length 0 extends to the end of the file
		hit.to = min(r.to, (last-slotsOffset)/slotSize+1)
	}
	return hit, nil
}

// pageID identifies a page. pageID contains the path because the kernel reuses device and inode
// numbers: after an unmount, another container's page may have the same numbers.
type pageID struct {
	path          string
	device, inode uint64
}

func idOf(path string, info os.FileInfo) pageID {
	stat := info.Sys().(*syscall.Stat_t)
	return pageID{path, stat.Dev, stat.Ino}
}

// rests maps each page whose locks took too long to the end of its pause.
type rests struct {
	mu    sync.Mutex
	until map[pageID]time.Time
}

var resting = rests{until: map[pageID]time.Time{}}

func (r *rests) has(id pageID, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return now.Before(r.until[id])
}

func (r *rests) add(id pageID, now time.Time, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.until, func(_ pageID, until time.Time) bool { return now.After(until) })
	r.until[id] = now.Add(min(restFactor*took, maxRest))
}
