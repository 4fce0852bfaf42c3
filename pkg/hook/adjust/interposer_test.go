// SPDX-License-Identifier: Apache-2.0

package adjust

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
)

// TestLibrariesForTheDriver checks that containers get the two libraries built for the node's
// driver, and a list of preloaded libraries that no other container has.
func TestLibrariesForTheDriver(t *testing.T) {
	for name, c := range map[string]struct {
		rules Rules
		want  string
	}{
		"as it is built": {Rules{LibraryDir: "/opt/1"}, "/opt/1"},
		"for the driver": {Rules{LibraryDir: "/opt/1", Interposer: func() string { return "/opt/1/drivers/ab" }}, "/opt/1/drivers/ab"},
	} {
		t.Run(name, func(t *testing.T) {
			var a Adjustment
			a.mountOurs(c.rules.LibraryDir, c.rules.interposer(), "/run/c")
			for destination, want := range map[string]string{
				paths.ContainerCUDA:    filepath.Join(c.want, paths.CUDALibrary),
				paths.ContainerNVML:    filepath.Join(c.want, paths.NVMLLibrary),
				paths.ContainerPreload: filepath.Join("/run/c", paths.Preload),
			} {
				i := slices.IndexFunc(a.Mounts, func(m Mount) bool { return m.Destination == destination })
				if i < 0 || a.Mounts[i].Source != want {
					t.Errorf("%s: %+v, want it from %s", destination, a.Mounts, want)
				}
			}
		})
	}
}
