// SPDX-License-Identifier: Apache-2.0

package ourfiles

import (
	"fmt"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

func TestBoundsAreDocumented(t *testing.T) {
	documented.Bound(t, "time of a look-up in its file systems", documented.Time(lookPatience))
	documented.Bound(t, "such look-ups that have not ended", fmt.Sprintf("%d in each of these processes, of a container 1", maxStuck))
}
