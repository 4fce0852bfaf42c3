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
