// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"

	"github.com/nri-vgpu/nri-vgpu/internal/container/ourfiles"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
)

// checkMounted refuses a container whose processes would see foreign files at nri-vgpu's paths, or
// could unmount nri-vgpu's files. proc is the proc file system of the host's pid namespace.
func checkMounted(c adjust.Container, looks *ourfiles.Looks, proc string) error {
	err := looks.Check(c.PodUID+"/"+c.Name, proc, c.PID, c.Mounts)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ourfiles.ErrVolume):
		return c.Refuse(adjust.ReasonMount, "%w", err)
	case errors.Is(err, ourfiles.ErrHidden):
		return c.Refuse(adjust.ReasonMount, "%w: remove the volumeMount that a link in the image leads over it", err)
	case errors.Is(err, ourfiles.ErrStuck):
		return c.Refuse(adjust.ReasonMount, "%w, so the agent cannot check the container's limits: find out why the image's file system hangs; kubelet will retry", err)
	default:
		return c.Refuse(adjust.ReasonUnadjusted, "%w: kubelet will recreate the container", err)
	}
}
