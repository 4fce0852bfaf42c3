// SPDX-License-Identifier: Apache-2.0

package gpuaccess

import (
	"strings"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

// TestVariablesAreCut checks that Variables keeps no long values, because all containers together
// may have many.
func TestVariablesAreCut(t *testing.T) {
	documented.Bound(t, "memory for the pods and containers that the runtime lists", "three variables cut to "+documented.Bytes(mostValue))
	long := strings.Repeat("x", 1<<20)
	got := Variables([]string{"OTHER=" + long, VisibleDevices + "=" + long, "CUDA_VERSION=" + long, "NVIDIA_REQUIRE_CUDA=" + long})
	if len(got) != 3 {
		t.Fatalf("%d variables are kept", len(got))
	}
	for _, entry := range got {
		if _, value, _ := strings.Cut(entry, "="); len(value) != 256 {
			t.Errorf("%.40s… has %d bytes", entry, len(value))
		}
	}
}
