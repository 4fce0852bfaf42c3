package hook

import (
	"errors"

	"github.com/nri-vgpu/nri-vgpu/pkg/injected"
)

// checkMounted refuses a container whose processes would find something else
// at our paths than what we mounted there. proc is /proc of the host's pid
// namespace.
func (c Container) checkMounted(proc string) error {
	err := injected.Check(proc, c.PID, c.Mounts)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, injected.ErrHidden):
		return c.refuse(ReasonMount, "%w: remove the volumeMount that a link in the image leads over it", err)
	default:
		return c.refuse(ReasonUnadjusted, "%w: kubelet will create it anew", err)
	}
}
