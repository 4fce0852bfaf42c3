// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"testing"

	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

func TestBoundsAreDocumented(t *testing.T) {
	documented.Bound(t, "an NRI message about a pod or a container", documented.Bytes(MostBytes))
}
