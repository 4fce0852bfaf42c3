// SPDX-License-Identifier: Apache-2.0

package lender

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// These are offsets of the first device's words on the limits page.
const (
	othersAt = leaseAt + 16*8
	looksAt  = othersAt + 16*8
)

// others returns the report on a container's page about the other containers of a GPU. The results
// are the charge of the others, the others' part of the GPU's time, and the time of the report.
func (c container) others() (charged time.Duration, ppm uint64, at time.Duration) {
	c.Helper()
	page, err := os.ReadFile(filepath.Join(c.dir, limits.LimitsFile))
	if err != nil {
		c.Fatal(err)
	}
	word := binary.LittleEndian.Uint64(page[looksAt:])
	return time.Duration(binary.LittleEndian.Uint64(page[othersAt:])), word & (1<<20 - 1), time.Duration(word >> 20 << 16)
}

// newCapped creates a container whose maximum is its guarantee; 1,000,000 means no limit.
func newCapped(t *testing.T, ppm uint32) container {
	t.Helper()
	c := container{t, t.TempDir()}
	if err := limits.Create(c.dir, []limits.Device{{UUID: gpu, MemoryBytes: 1, ComputePPM: ppm}}); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestLoneContainerHasNoOthers(t *testing.T) {
	c := newCapped(t, 300_000)
	l, _ := newLender(t, c)
	now := time.Hour
	if wait := l.step(now); wait != refreshEvery {
		t.Errorf("the next search is in %s", wait)
	}
	c.claim(uint64(time.Second), now)
	l.step(now + time.Second)
	if charged, ppm, at := c.others(); charged != 0 || ppm != 0 || at <= 0 {
		t.Errorf("the page has the others' %s and %d ppm, as of %s", charged, ppm, at)
	}
}

func TestPagesHaveTheChargesOfOthers(t *testing.T) {
	a, b, unlimited := newCapped(t, 300_000), newCapped(t, 600_000), newCapped(t, 1_000_000)
	for _, test := range []struct {
		name       string
		containers []container
		spent      []time.Duration // by container, in a second
		want       []time.Duration // the others' charge on each container's page
		ppm        []uint64
	}{
		{
			"two", []container{a, b}, []time.Duration{100 * time.Millisecond, 500 * time.Millisecond},
			[]time.Duration{500 * time.Millisecond, 100 * time.Millisecond}, []uint64{600_000, 300_000},
		},
		{
			"one is not metered", []container{a, b, unlimited}, []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 0},
			[]time.Duration{1200 * time.Millisecond, 1100 * time.Millisecond, 0}, []uint64{1_000_000, 1_000_000, 0},
		},
		{
			"more is claimed than time has passed", []container{a, b}, []time.Duration{0, time.Hour},
			[]time.Duration{time.Second, 0}, []uint64{600_000, 300_000},
		},
		{
			"something is given back", []container{a, b}, []time.Duration{0, -time.Millisecond},
			[]time.Duration{-time.Millisecond, 0}, []uint64{600_000, 300_000},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, _ := newLender(t, test.containers...)
			now := time.Hour
			for _, c := range test.containers {
				c.claim(0, now)
			}
			l.step(now)
			before := make([]time.Duration, len(test.containers))
			for i, c := range test.containers {
				before[i], _, _ = c.others()
			}
			for step := range 50 {
				now += besideTick
				for i, c := range test.containers {
					c.claim(uint64(test.spent[i]*time.Duration(step+1)/50), now)
				}
				if wait := l.step(now); wait != besideTick && wait != quietTick {
					t.Fatalf("the next search is in %s", wait)
				}
			}
			for i, c := range test.containers {
				charged, ppm, at := c.others()
				if got := charged - before[i]; got.Round(time.Millisecond) != test.want[i] || ppm != test.ppm[i] {
					t.Errorf("the page of container %d has %s and %d ppm, want %s and %d", i, got, ppm, test.want[i], test.ppm[i])
				}
				if ppm != 0 && (at > now || at < now-time.Millisecond) {
					t.Errorf("the page of container %d is as of %s, now is %s", i, at, now)
				}
			}
		})
	}
}

// TestUnreadableContainerMayHaveHadItsPart checks that a container that truncates its usage page
// takes nothing from the other containers.
func TestUnreadableContainerMayHaveHadItsPart(t *testing.T) {
	vandal, good := newCapped(t, 300_000), newCapped(t, 300_000)
	l, _ := newLender(t, vandal, good)
	now := time.Hour
	l.step(now)
	if err := os.Truncate(filepath.Join(vandal.dir, limits.UsageFile), 10); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		now += idleTick
		l.step(now)
	}
	if charged, _, _ := good.others(); charged.Round(time.Millisecond) != 300*time.Millisecond {
		t.Errorf("the neighbour's page grew by %s in a second", charged)
	}
}
