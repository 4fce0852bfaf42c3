// SPDX-License-Identifier: Apache-2.0

package detect

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/test/mountns"
)

// TestUsagePagesThatGrowAreCutBack checks that the detector reports a tenant that repeatedly grows
// its page only once. The detector still judges the tenant's processes by the page's content.
func TestUsagePagesThatGrowAreCutBack(t *testing.T) {
	h := newHouse(t)
	h.restart(config.Detection{Action: config.DetectStop, HostAction: config.DetectReport})
	path := filepath.Join(h.dir, limits.UsageFile)
	grow := func() {
		t.Helper()
		if err := os.Truncate(path, 1<<30); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		grow()
		h.round()
		if info, err := os.Stat(path); err != nil || info.Size() != limits.UsageBytes {
			t.Fatalf("the page has %d bytes, %v", info.Size(), err)
		}
	}
	h.wantTold("p VGPUUsageForged container main made its usage page grow to 1048576 KiB")
	if got := testutil.ToFloat64(h.detector.Metrics.cut); got != 3 {
		t.Errorf("counted %v pages that were cut, want 3", got)
	}
	h.detector.grown[podUID+"/main"] = time.Now().Add(-10*time.Minute + 30*time.Second)
	grow()
	h.round()
	h.wantTold()
	h.detector.grown[podUID+"/main"] = time.Now().Add(-10 * time.Minute)
	grow()
	h.round()
	h.wantTold("p VGPUUsageForged container main made its usage page grow to 1048576 KiB")
}

// TestATenantKeepsThePageLocked checks that a round ends although a write of the tenant holds the lock of
// its page's inode. The detection of all containers runs in rounds.
func TestATenantKeepsThePageLocked(t *testing.T) {
	h := newHouse(t)
	path := filepath.Join(h.dir, limits.UsageFile)
	if err := os.Truncate(path, limits.UsageBytes+4096); err != nil {
		t.Fatal(err)
	}
	mountns.Hold(t, path)
	begin := time.Now()
	for range 2 {
		done := make(chan struct{})
		go func() {
			defer close(done)
			h.round()
		}()
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Fatal("the round waits for the tenant")
		}
	}
	t.Logf("two rounds took %v", time.Since(begin))
	if h.detector.busy[containerID] != (busyPage{}) {
		t.Error("the page counts as busy, although it can be read")
	}
}
