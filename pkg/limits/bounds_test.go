// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits/internal/layout"
	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

func TestBoundsAreDocumented(t *testing.T) {
	documented.Bound(t, "locks on a usage page", documented.Time(lockBudget)+" of a processor for a read", "1 % of a processor for all pages that exceed it")
	documented.Bound(t, "values on a usage page", "2^50 bytes, 2^63 ns", documented.Count(layout.MaxSlots)+" processes", fmt.Sprintf("%d GPUs", MaxDevices))
}

// TestTheLocksOfAPageHaveABudget checks that a read stops its queries for locks after 10 ms.
func TestTheLocksOfAPageHaveABudget(t *testing.T) {
	for each, want := range map[time.Duration]int{time.Millisecond: 11, 4 * time.Millisecond: 3, time.Second: 1} {
		asked, now := 0, time.Hour
		first := func(r slotRange) (slotRange, error) {
			asked++
			now += each
			return slotRange{r.from, r.from + 1}, nil
		}
		if _, err := searchSlots(layout.MaxSlots, first, func() time.Duration { return now }); !errors.Is(err, ErrBusy) || asked != want {
			t.Errorf("at %v each, %d look-ups, want %d: %v", each, asked, want, err)
		}
	}
	free := func(slotRange) (slotRange, error) { return slotRange{}, nil }
	if held, err := searchSlots(2, free, func() time.Duration { return 0 }); err != nil || len(held) != 2 || held[0] || held[1] {
		t.Errorf("a page without locks: %v, %v", held, err)
	}
}

// TestBusyPagesRest checks that the pause of a page is a hundred times the cost of its locks, but
// at most a minute.
func TestBusyPagesRest(t *testing.T) {
	now := time.Now()
	for took, pause := range map[time.Duration]time.Duration{
		10 * time.Millisecond: time.Second, 599 * time.Millisecond: 59900 * time.Millisecond,
		time.Second: time.Minute, time.Hour: time.Minute,
	} {
		r, page := rests{pages: map[pageID]rest{}}, pageID{path: "page"}
		r.add(page, now, took)
		if !r.has(page, now.Add(pause-1)) || r.has(page, now.Add(pause)) || r.has(pageID{path: "another"}, now) {
			t.Errorf("after %v it does not rest for %v, or another does", took, pause)
		}
		r.add(pageID{path: "later"}, now.Add(pause+forgetAfter+1), took)
		if len(r.pages) != 1 {
			t.Errorf("%d pages are kept", len(r.pages))
		}
		r.drop(pageID{path: "later"}, now)
		if len(r.pages) != 0 {
			t.Errorf("%d pages are kept after a read within the budget", len(r.pages))
		}
	}
}

// TestBusyPagesTakeTurns checks that many busy pages together cost a hundredth of a processor, and
// that every page is read again. A tenant has these pages in a pod of many init containers.
func TestBusyPagesTakeTurns(t *testing.T) {
	const pages, duration = 630, 2 * time.Hour
	begin := time.Now()
	r, reads := rests{pages: map[pageID]rest{}}, make([]int, pages)
	var cost, longest time.Duration // without each page's first read
	for now := begin; now.Before(begin.Add(duration)); now = now.Add(3 * time.Second) {
		var round time.Duration
		for i := range reads { // in the same order each time, as readers do
			page := pageID{inode: uint64(i)}
			if r.has(page, now) {
				continue
			}
			if reads[i]++; reads[i] > 1 {
				round += lockBudget
			}
			r.add(page, now, lockBudget)
		}
		cost, longest = cost+round, max(longest, round)
	}
	if cost > duration/restFactor {
		t.Errorf("the locks of %d pages took %v of %v", pages, cost, duration)
	}
	if longest > lockBudget {
		t.Errorf("the locks of %d pages took %v in one round", pages, longest)
	}
	for i, n := range reads {
		if n < 2 {
			t.Fatalf("page %d was read %d times", i, n)
		}
	}
}
