// SPDX-License-Identifier: Apache-2.0

package vgpuctl

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/timed"
)

// TestTrapsLeaveOthersAlone checks that a container whose kernels end with exceptions changes neither
// the shares of other containers nor their charges. After each exception, the container's process
// ends, and another process begins.
func TestTrapsLeaveOthersAlone(t *testing.T) {
	t.Parallel()
	timed.Run(t, testTrapsLeaveOthersAlone)
}

func testTrapsLeaveOthersAlone(t testing.TB) {
	const period = 3 * time.Second
	m := newMachine(t)
	tenants := []tenant{{30, "async", "2000"}, {40, "async", "200"}}
	pids := m.compete("cap", tenants)
	m.start(m.command("run", "--group", "traps", "--memory", "4Gi", "--cores", "20", "--",
		m.workload("evade"), "--way", "traps", "--duration", "60"))
	o := m.oracle()
	eventually.Holds(t, patience, "a kernel has ended with an exception", func() bool {
		finished, err := o.Finished()
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(finished, func(p oracle.Finished) bool {
			return slices.ContainsFunc(p.GPUs, func(u oracle.PastUse) bool { return u.GPUTimeNs > 0 })
		})
	})
	before := []time.Duration{m.charged("t0"), m.charged("t1")}
	shares := m.sharesOf(pids, period)
	wantLimits(t, tenants, shares)
	for i, group := range []string{"t0", "t1"} {
		charged := 100 * float64(m.charged(group)-before[i]) / float64(period)
		if math.Abs(charged-shares[i]) > disturbed {
			t.Errorf("%+v was charged %.1f %%, and had %.1f %% of the GPU's time", tenants[i], charged, shares[i])
		}
	}
}
