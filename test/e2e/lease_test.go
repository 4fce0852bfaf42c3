// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// TestLeasesDelayNoOtherContainer checks that leases on nri-vgpu's files do not delay programs of other
// containers, before and after a restart of the agent. The leases also delay neither the restart nor the
// start of the next container. An open of a file with a write lease waits for 45 s. The test's runtime has
// not been restarted since the installation and runs no guard. Therefore, no program keeps the files open
// during the restart.
func TestLeasesDelayNoOtherContainer(t *testing.T) {
	small := testbed.Limits{testbed.Memory: 64}
	create(t, testbed.Pod("leases", testbed.Container("main", small, "attack", "--way", "lease-files", "--duration", "3600")))
	running(t, "leases")
	create(t, testbed.Pod("beside-leases", testbed.Container("main", small, "sleep", "3600")))
	running(t, "beside-leases")
	check := func(when string) {
		t.Helper()
		for range 5 {
			begin := time.Now()
			shell(t, "beside-leases", "main", "true && vgpuctl --version")
			if took := time.Since(begin); took > 20*time.Second {
				t.Errorf("%s, a program took %v", when, took)
			}
		}
	}
	check("with an agent")
	begin := time.Now()
	if err := bed.RestartAgent(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	waitRegistered(t)
	create(t, testbed.Pod("after-leases", testbed.Container("main", small, "sleep", "3600")))
	running(t, "after-leases")
	if took := time.Since(begin); took > 40*time.Second {
		t.Errorf("a restart and the start of a container took %v", took)
	}
	check("with another agent")
}
