// SPDX-License-Identifier: Apache-2.0

package ourfiles

import (
	"fmt"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

func TestBoundsAreDocumented(t *testing.T) {
	documented.Bound(t, "time of a look-up in a container's file systems", documented.Time(lookPatience))
	documented.Bound(t, "look-ups in containers' file systems that have not ended", fmt.Sprintf("%d in each of agent, guard and stand-in; 1 for each container", maxStuck))
}
