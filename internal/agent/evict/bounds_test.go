// SPDX-License-Identifier: Apache-2.0

package evict

import (
	"testing"

	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

func TestBoundsAreDocumented(t *testing.T) {
	documented.Bound(t, "pods that fit no GPU", "remembers "+documented.Count(maxPods)+" pods, "+documented.Bytes(maxWhy)+" for each pod",
		"one eviction in "+documented.Time(pace))
}
