// SPDX-License-Identifier: Apache-2.0

package volcano

import (
	"testing"

	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

func TestBoundsAreDocumented(t *testing.T) {
	documented.Bound(t, "wishes for GPUs in Volcano's annotations", documented.Bytes(mostWish)+" each")
}
