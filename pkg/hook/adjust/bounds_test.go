// SPDX-License-Identifier: Apache-2.0

package adjust

import (
	"testing"

	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

func TestBoundsAreDocumented(t *testing.T) {
	documented.Bound(t, "`LD_PRELOAD`", documented.Bytes(MostPreload))
}
