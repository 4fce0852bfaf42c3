// SPDX-License-Identifier: Apache-2.0

package events

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

func TestBoundsAreDocumented(t *testing.T) {
	documented.Bound(t, "Events about refusals", fmt.Sprintf("%d different Events", burst), documented.Bytes(maxNote)+" each",
		fmt.Sprintf("%d Events wait", queueLength), "remembers "+documented.Count(maxKept)+" Events")
}

// TestOneDifferentNoteAMinuteIsWritten checks that the recorder writes five different notes at
// once, and after that one note per minute.
func TestOneDifferentNoteAMinuteIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, client := start(t)
		for n := range 600 {
			r.OnPod(web, VGPURefused, "free: %d MiB", n)
			time.Sleep(time.Second)
		}
		if got := len(written(t, client)); got != 5+9 {
			t.Errorf("in ten minutes %d events were written, want 14", got)
		}
	})
}

// TestLongNotesAreCut checks that the recorder shortens long notes. A note may quote tenants'
// input.
func TestLongNotesAreCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, client := start(t)
		r.OnPod(web, VGPURefused, "%s", strings.Repeat("x", 1<<20))
		if all := written(t, client); len(all) != 1 || len(all[0].Note) != 1024 {
			t.Errorf("%d events were written, the first of %d bytes", len(all), len(all[0].Note))
		}
	})
}
