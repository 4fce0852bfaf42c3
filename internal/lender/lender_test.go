// SPDX-License-Identifier: Apache-2.0

package lender

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

const gpu = "GPU-00000000-0000-0000-0000-000000000001"

// These are offsets on the pages, as pkg/limits/internal/layout declares them.
const (
	filledAt, spentAt = 64 + 6*8, 64 + 7*8
	leaseAt           = 64 + 2*1048 + 16*8
)

// container is a container whose processes the test simulates.
type container struct {
	*testing.T
	dir string
}

func newContainer(t *testing.T, ppm uint32) container {
	t.Helper()
	c := container{t, t.TempDir()}
	if err := limits.Create(c.dir, []limits.Device{{UUID: gpu, MemoryBytes: 1, ComputePPM: ppm, MaximumPPM: 1_000_000}}); err != nil {
		t.Fatal(err)
	}
	return c
}

// claim writes the claims of the container's processes.
func (c container) claim(spent uint64, filled time.Duration) {
	c.Helper()
	f, err := os.OpenFile(filepath.Join(c.dir, limits.UsageFile), os.O_WRONLY, 0)
	if err != nil {
		c.Fatal(err)
	}
	defer f.Close()
	for at, value := range map[int64]uint64{spentAt: spent, filledAt: uint64(filled)} {
		if _, err := f.WriteAt(binary.LittleEndian.AppendUint64(nil, value), at); err != nil {
			c.Fatal(err)
		}
	}
}

// lease returns the lease on the limits page.
func (c container) lease() (ppm uint64, until time.Duration) {
	c.Helper()
	page, err := os.ReadFile(filepath.Join(c.dir, limits.LimitsFile))
	if err != nil {
		c.Fatal(err)
	}
	word := binary.LittleEndian.Uint64(page[leaseAt:])
	return word & (1<<20 - 1), time.Duration(word >> 20 << 16)
}

func newLender(t *testing.T, containers ...container) (*Lender, *bytes.Buffer) {
	var log bytes.Buffer
	l := New(Options{
		Dirs: func() []string {
			var dirs []string
			for _, c := range containers {
				dirs = append(dirs, c.dir)
			}
			return dirs
		},
		Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	t.Cleanup(l.close)
	return l, &log
}

// work simulates containers that use all of their time, and calls step after each busyTick.
func work(l *Lender, now *time.Duration, steps int, busy ...container) (wait time.Duration) {
	for range steps {
		*now += busyTick
		for _, c := range busy {
			c.claim(uint64(*now), *now)
		}
		wait = l.step(*now)
	}
	return wait
}

func TestLenderWritesLeases(t *testing.T) {
	borrower, owner := newContainer(t, 300_000), newContainer(t, 600_000)
	l, _ := newLender(t, borrower, owner)
	now := time.Hour
	if wait := l.step(now); wait != idleTick {
		t.Errorf("without busy containers, the next search is in %s", wait)
	}
	if wait := work(l, &now, 5, borrower); wait != busyTick {
		t.Errorf("with a busy container, the next search is in %s", wait)
	}
	if ppm, until := borrower.lease(); ppm != 1_000_000 || until <= now || until > now+term {
		t.Errorf("it has a lease on %d ppm for %s", ppm, until-now)
	}
	if ppm, _ := owner.lease(); ppm != 0 {
		t.Errorf("the idle one has a lease on %d ppm", ppm)
	}
	work(l, &now, 1, borrower, owner)
	if ppm, _ := borrower.lease(); ppm >= 400_000 {
		t.Errorf("it still has %d ppm when the owner is back", ppm)
	}
	work(l, &now, 20)
	if ppm, _ := borrower.lease(); ppm != 0 {
		t.Errorf("it has a lease on %d ppm and does nothing", ppm)
	}
	work(l, &now, 5, borrower)
	l.close()
	if ppm, _ := borrower.lease(); ppm != 0 {
		t.Errorf("a lease on %d ppm outlived its lender", ppm)
	}
}

// TestLenderFollowsPages checks that the lender finds new limits, and a new instance of a container
// with new pages.
func TestLenderFollowsPages(t *testing.T) {
	c := newContainer(t, 300_000)
	l, _ := newLender(t, c)
	now := time.Hour
	work(l, &now, 3, c)
	if err := limits.Update(c.dir, []limits.Device{{UUID: gpu, MemoryBytes: 1, ComputePPM: 300_000}}); err != nil {
		t.Fatal(err)
	}
	work(l, &now, 3, c)
	if ppm, _ := c.lease(); ppm != 0 {
		t.Errorf("a cap has a lease on %d ppm", ppm)
	}
	if err := limits.Create(c.dir, []limits.Device{{UUID: gpu, MemoryBytes: 1, ComputePPM: 300_000, MaximumPPM: 1_000_000}}); err != nil {
		t.Fatal(err)
	}
	now += refreshEvery
	work(l, &now, 5, c)
	if ppm, _ := c.lease(); ppm != 1_000_000 {
		t.Errorf("the new instance has a lease on %d ppm", ppm)
	}
}

// TestLenderSurvivesDamage checks that a container that truncates its usage page gains nothing, and
// disturbs no other container.
func TestLenderSurvivesDamage(t *testing.T) {
	vandal, good := newContainer(t, 300_000), newContainer(t, 300_000)
	l, log := newLender(t, vandal, good, container{t, t.TempDir()})
	now := time.Hour
	work(l, &now, 3, vandal, good)
	if err := os.Truncate(filepath.Join(vandal.dir, limits.UsageFile), 10); err != nil {
		t.Fatal(err)
	}
	work(l, &now, 5, good)
	if ppm, _ := good.lease(); ppm != 1_000_000 {
		t.Errorf("its neighbour has a lease on %d ppm", ppm)
	}
	if ppm, _ := vandal.lease(); ppm != 0 {
		t.Errorf("it has a lease on %d ppm", ppm)
	}
	if log.Len() > 0 {
		t.Errorf("the log has: %s", log)
	}
}
