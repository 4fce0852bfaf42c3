// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"strings"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// TestDevicesThatShareAnInstance checks that MIG devices of one GPU instance are unhealthy, and keep an
// earlier reason. The device that fills its GPU instance stays healthy.
func TestDevicesThatShareAnInstance(t *testing.T) {
	device := func(uuid string, instance, compute int) gpu.GPU {
		return gpu.GPU{UUID: uuid, Healthy: true, MIG: gpu.MIG{Parent: "GPU-a", Instance: instance, Compute: compute}}
	}
	lost := device("MIG-3", 2, 1)
	lost.Healthy, lost.Reason = false, "lost"
	for _, g := range withoutShared([]gpu.GPU{device("MIG-1", 1, 0), device("MIG-2", 2, 0), lost}) {
		want := map[string]string{"MIG-1": "", "MIG-2": "shares the memory of GPU instance 2", "MIG-3": "lost"}[g.UUID]
		if g.Healthy != (want == "") || !strings.Contains(g.Reason, want) {
			t.Errorf("%s is healthy: %t, %s", g.UUID, g.Healthy, g.Reason)
		}
	}
}
