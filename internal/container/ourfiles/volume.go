// SPDX-License-Identifier: Apache-2.0

package ourfiles

import (
	"fmt"
	"path"
	"slices"

	"github.com/nri-vgpu/nri-vgpu/internal/container/gpuaccess"
)

// VolumeError is the error of a container with a volume above our files. VolumeError is an
// ErrVolume. Other containers share a volume, and may write to the volume without root. Moving or
// removing a directory of the volume displaces our files below the directory, although our files
// are separate mounts.
type VolumeError struct {
	// Volume is the volume's path in the container, and File the file that would be inside it.
	Volume, File string
	// Detour reports that no volumeMount names the volume, but a link in the image leads into it.
	Detour bool
}

func (e *VolumeError) Error() string {
	by := fmt.Sprintf("by the volumeMount %q", e.Volume)
	if e.Detour {
		by = fmt.Sprintf("by a volumeMount that a link in the image leads to %s", e.Volume)
	}
	return fmt.Sprintf("nri-vgpu's %s would lie in a volume, %s, and could be removed there: mount the volume at another directory, such as %s", e.File, by, path.Join(e.Volume, "data"))
}

func (e *VolumeError) Unwrap() error { return ErrVolume }

// CheckAbove refuses mounts that are above our files by their path. Only Check detects the effect
// of links in the image.
func CheckAbove(mounts []Mount) error {
	for _, m := range mounts {
		at := path.Clean("/" + m.Destination)
		k := slices.IndexFunc(Required, func(file string) bool { return at == "/" || file != at && gpuaccess.Within(file, at) })
		if k >= 0 {
			return &VolumeError{Volume: at, File: Required[k]}
		}
	}
	return nil
}
