// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
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
	// restFactor is the pause between reads of pages whose last read exceeded the budget, as a
	// multiple of the read's processor time. Therefore the locks of all these pages together cost at
	// most a hundredth of a processor, even with slow queries.
	restFactor = 100
	maxRest    = time.Minute
	// A page no longer counts after forgetAfter without a reader. A page that no longer exists
	// does not count after goneAfter.
	forgetAfter = 10 * time.Minute
	goneAfter   = 5 * time.Second
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

// rests are the pages whose locks took too long at their last read. Only one of
// them is read at a time, and they take turns. A tenant may have many containers, and may keep the
// locks of ended containers.
type rests struct {
	mu    sync.Mutex
	pages map[pageID]rest
	// until is the end of the pause of all pages. After the pause, only next may be read.
	until time.Time
	next  pageID
}

// rest describes a page that rests.
type rest struct {
	read   time.Time // the time of the last read
	wanted time.Time // the time at which a reader last wanted the page
}

var resting = rests{pages: map[pageID]rest{}}

// unwanted reports whether no reader wants a page any more.
func (p rest) unwanted(id pageID, now time.Time) bool {
	since := now.Sub(p.wanted)
	if since <= goneAfter || since > forgetAfter {
		return since > forgetAfter
	}
	_, err := os.Stat(id.path)
	return errors.Is(err, fs.ErrNotExist)
}

// has reports whether a page must not be read now.
func (r *rests) has(id pageID, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	page, busy := r.pages[id]
	if !busy {
		return false
	}
	page.wanted = now
	r.pages[id] = page
	if r.pages[r.next].unwanted(r.next, now) {
		r.choose(now)
	}
	return now.Before(r.until) || id != r.next
}

// add records that the read of a page has exceeded the budget.
func (r *rests) add(id pageID, now time.Time, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pages[id] = rest{read: now, wanted: now}
	r.until = now.Add(min(restFactor*took, maxRest))
	r.choose(now)
}

// drop records that the read of a page has not exceeded the budget.
func (r *rests) drop(id pageID, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, busy := r.pages[id]; busy {
		delete(r.pages, id)
		r.choose(now)
	}
}

// choose forgets pages that no reader wants, and chooses the page that was read the longest time ago.
// The caller holds r.mu.
func (r *rests) choose(now time.Time) {
	first := true
	for id, page := range r.pages {
		switch {
		case page.unwanted(id, now):
			delete(r.pages, id)
		case first || page.read.Before(r.pages[r.next].read):
			r.next, first = id, false
		}
	}
}
