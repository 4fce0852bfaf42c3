package injected

import (
	"fmt"
	"path"
	"slices"

	"github.com/nri-vgpu/nri-vgpu/pkg/reach"
)

// VolumeError is the error of a container with a volume above our files. It is an
// ErrVolume. A volume is shared with other containers and writable without being root:
// whoever moves or removes there the directories that hold our files takes them away,
// though they are mounts of their own.
type VolumeError struct {
	// Volume is where in the container it is mounted, and File what would lie in it.
	Volume, File string
	// Detour: no volumeMount says so, but a link in the image leads one there.
	Detour bool
}

func (e *VolumeError) Error() string {
	by := fmt.Sprintf("by the volumeMount %q", e.Volume)
	if e.Detour {
		by = fmt.Sprintf("by a volumeMount that a link in the image leads to %s", e.Volume)
	}
	return fmt.Sprintf("nri-vgpu's %s would lie in a volume, %s, and could be taken away there: mount the volume at a directory of its own, such as %s", e.File, by, path.Join(e.Volume, "data"))
}

func (e *VolumeError) Unwrap() error { return ErrVolume }

// CheckAbove refuses mounts that are above our files by their path. What links in the
// image make of paths only Check sees.
func CheckAbove(mounts []Mount) error {
	for _, m := range mounts {
		at := path.Clean("/" + m.Destination)
		k := slices.IndexFunc(Files, func(file string) bool { return at == "/" || file != at && reach.Within(file, at) })
		if k >= 0 {
			return &VolumeError{Volume: at, File: Files[k]}
		}
	}
	return nil
}
