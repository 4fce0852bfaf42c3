// SPDX-License-Identifier: Apache-2.0

package request

import (
	"fmt"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

func TestBoundsAreDocumented(t *testing.T) {
	documented.Bound(t, "containers of a pod with requests", documented.Count(MostAsking))
	documented.Bound(t, "containers on a GPU", fmt.Sprintf("`node.slots_per_gpu` (%d)", config.Default().Node.SlotsPerGPU))
}
