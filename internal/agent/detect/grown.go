// SPDX-License-Identifier: Apache-2.0

package detect

import (
	"fmt"
	"maps"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// grownPause is the least time between two reports that a container has grown its usage page.
const grownPause = 10 * time.Minute

// cut truncates a container's usage page if a program in the container has grown the page, as no
// interposer does. A page of an older release is a file on the node's /run and takes memory of
// /run.
func (d *Detector) cut(c *container, path string) {
	was, err := limits.Cut(path)
	if err != nil {
		d.Log.Debug("failed to cut a usage page", "pod", c.Pod, "container", c.Container, "error", err)
	}
	if was == 0 {
		return
	}
	d.Metrics.cut.Inc()
	now := time.Now()
	maps.DeleteFunc(d.grown, func(_ string, reported time.Time) bool { return now.Sub(reported) >= grownPause })
	key := c.PodUID + "/" + c.Container
	if _, reported := d.grown[key]; reported {
		return
	}
	d.grown[key] = now
	line := fmt.Sprintf("container %s made its usage page grow to %d KiB, which no well-behaved program does; the agent truncated the page to %d KiB", c.Container, was>>10, limits.UsageBytes>>10)
	d.Log.Warn(line, "namespace", c.Namespace, "pod", c.Pod)
	d.write(c.PodUID, events.VGPUUsageForged, line)
}
