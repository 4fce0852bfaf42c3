// SPDX-License-Identifier: Apache-2.0

package detect

import (
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

func TestBoundsAreDocumented(t *testing.T) {
	documented.Bound(t, "processes that bypass their limits", fmt.Sprintf("%d log lines and Events for each check", maxReported),
		documented.Time(config.Default().Detection.Interval.Duration)+" later")
	documented.Bound(t, "locks on a usage page", "the page counts as broken after "+documented.Time(busyPatience))
	documented.Bound(t, "bytes and inodes of the file system of a usage page", fmt.Sprintf("%.1f MiB", float64(limits.UsageBytes)/(1<<20)))
}

// TestTooManyHangingLookUpsAreNoFinding checks that the detector reports only the containers whose
// look-ups hang. If too many look-ups hang, the state of the other containers is unknown.
func TestTooManyHangingLookUpsAreNoFinding(t *testing.T) {
	h := newHouse(t)
	n := inMounts(h)
	n.Do("hang", "/usr/local")
	var all sync.WaitGroup
	for k := range 8 {
		all.Go(func() {
			if h.detector.looks.CheckRunning(strconv.Itoa(k), h.proc, n.PID, h.carried[containerID].Mounts) == nil {
				t.Error("a look-up does not hang")
			}
		})
	}
	all.Wait()
	h.round()
	h.wantTold()
	h.wantMetric(0, h.detector.Metrics.displaced)
}

// TestAPageIsBusyForTwoMinutes checks that a page that a tenant keeps busy counts as broken after
// two minutes, and not before.
func TestAPageIsBusyForTwoMinutes(t *testing.T) {
	h := newHouse(t)
	synctest.Test(t, func(t *testing.T) {
		h.restart(config.Default().Detection)
		unknown := func() bool {
			p := &picture{containers: map[string]container{containerID: {Allocation: h.holders[containerID], busy: true}}}
			for i := range 20 { // the order of a map is random
				p.containers[fmt.Sprint("idle", i)] = container{}
			}
			h.detector.settle(p)
			return p.containers[containerID].unknown
		}
		begin := unknown()
		time.Sleep(2*time.Minute - time.Nanosecond)
		if !begin || !unknown() {
			t.Error("it is broken before")
		}
		time.Sleep(time.Nanosecond)
		if unknown() {
			t.Error("it is not broken then")
		}
	})
}

// TestKindsOfAGPUThatIsGone checks that a GPU that the driver no longer lists has no series.
func TestKindsOfAGPUThatIsGone(t *testing.T) {
	m := newHouse(t).detector.Metrics
	process := []gpu.Process{{}}
	m.setKinds(map[string][]gpu.Process{"GPU-a": process, "GPU-b": process})
	m.setKinds(map[string][]gpu.Process{"GPU-a": process})
	if got, want := testutil.CollectAndCount(m.kinds), len(gpu.Kinds); got != want {
		t.Errorf("%d series of a GPU, want %d", got, want)
	}
}
