package hook

import (
	"errors"

	"github.com/nri-vgpu/nri-vgpu/pkg/injected"
)

// checkMounted refuses a container whose processes would find something else
// at our paths than what we mounted there, or could take it away. proc is /proc of the
// host's pid namespace.
func (c Container) checkMounted(looks *injected.Looks, proc string) error {
	err := looks.Check(c.PodUID+"/"+c.Name, proc, c.PID, c.Mounts)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, injected.ErrVolume):
		return c.refuse(ReasonMount, "%w", err)
	case errors.Is(err, injected.ErrHidden):
		return c.refuse(ReasonMount, "%w: remove the volumeMount that a link in the image leads over it", err)
	case errors.Is(err, injected.ErrStuck):
		return c.refuse(ReasonMount, "%w: it cannot be seen whether its limits are in place: see why its image's file system hangs; kubelet will try again", err)
	default:
		return c.refuse(ReasonUnadjusted, "%w: kubelet will create it anew", err)
	}
}
