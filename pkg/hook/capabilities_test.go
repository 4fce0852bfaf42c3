// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"testing"

	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
)

// TestWhoseCapabilitiesAreLimited checks that a container with limits gets no graphics, whatever it
// requests, and that a container with whole GPUs gets all requested capabilities.
func TestWhoseCapabilitiesAreLimited(t *testing.T) {
	for memory, want := range map[string]string{"main=1024": "compute,utility", "main=16384": "all"} {
		n := newNode(t)
		n.pod("w", memory)
		wantEnv(t, mustCreate(t, n, "w", addEnv(adjust.DriverCapabilities+"=all")), adjust.DriverCapabilities, want)
	}
}
