// SPDX-License-Identifier: Apache-2.0

package lender

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// pageVersionAt is the offset of the layout's version on both pages.
const pageVersionAt = 8

// ofNextRelease rewrites a container's pages with a higher version and a larger size. This release
// cannot read the rewritten pages.
func (c container) ofNextRelease() {
	c.Helper()
	for _, name := range []string{limits.LimitsFile, limits.UsageFile} {
		path := filepath.Join(c.dir, name)
		page, err := os.ReadFile(path)
		if err != nil {
			c.Fatal(err)
		}
		binary.LittleEndian.PutUint32(page[pageVersionAt:], binary.LittleEndian.Uint32(page[pageVersionAt:])+1)
		if err := os.WriteFile(path, append(page, make([]byte, 4096)...), 0o600); err != nil {
			c.Fatal(err)
		}
	}
}

// TestContainerOfAnotherReleaseKeepsItsPart checks a container with unreadable pages, which exist
// after a rollback. The lender does not lend the container's part, and reports to the other
// containers that the container may have used the part.
func TestContainerOfAnotherReleaseKeepsItsPart(t *testing.T) {
	for _, test := range []struct {
		name    string
		disturb func(container)
	}{
		{"its pages have another version", container.ofNextRelease},
		{"its usage page is elsewhere", func(c container) {
			if err := os.Remove(filepath.Join(c.dir, limits.UsageFile)); err != nil {
				c.Fatal(err)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			other, sharer := newContainer(t, 600_000), newContainer(t, 300_000)
			test.disturb(other)
			l, log := newLender(t, other, sharer)
			l.Given = func(dir string) []limits.Device {
				if dir != other.dir {
					t.Errorf("requested %s, whose pages can be read", dir)
				}
				return []limits.Device{{UUID: gpu, MemoryBytes: 1, ComputePPM: 600_000, MaximumPPM: 1_000_000}}
			}
			now := time.Hour
			work(l, &now, 5, sharer)
			before, _, _ := sharer.others()
			if ppm, _ := sharer.lease(); ppm != 400_000 {
				t.Errorf("beside it another may use %d ppm, want 400000", ppm)
			}
			for range 50 {
				now += besideTick
				l.step(now)
			}
			if charged, ppm, _ := sharer.others(); (charged-before).Round(10*time.Millisecond) != 600*time.Millisecond || ppm != 600_000 {
				t.Errorf("the other page grew by %s in a second, and has %d ppm, want 600ms and 600000", charged-before, ppm)
			}
			if n := strings.Count(log.String(), other.dir); n != 1 {
				t.Errorf("the log names its pages %d times, want once:\n%s", n, log)
			}
			// The container restarts with pages of this release.
			if err := limits.Create(other.dir, []limits.Device{{UUID: gpu, MemoryBytes: 1, ComputePPM: 600_000, MaximumPPM: 1_000_000}}); err != nil {
				t.Fatal(err)
			}
			l.Given = nil
			now += refreshEvery
			work(l, &now, 5, sharer)
			if ppm, _ := sharer.lease(); ppm != 1_000_000 {
				t.Errorf("beside an idle container, another may use %d ppm, want 1000000", ppm)
			}
		})
	}
}
