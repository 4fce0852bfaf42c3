// SPDX-License-Identifier: Apache-2.0

package detect

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/deadline"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// grownPause is the least time between two reports that a container has grown its usage page.
const grownPause = 10 * time.Minute

// cutPatience bounds the time in which cut truncates a page.
const cutPatience = time.Second

// cut reports a usage page that a program in its container has grown, as no interposer does. A page of
// an older release takes memory of the node's /run. cut truncates such pages, one at a time. If a tenant keeps a page locked, cut truncates no other page.
func (d *Detector) cut(ctx context.Context, c *container, path string) {
	type result struct {
		was int64
		err error
	}
	done, late := deadline.Do(ctx, d.cuts, func() result {
		was, err := limits.Cut(path)
		return result{was, err}
	})
	was, err := done.was, cmp.Or(late, done.err)
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
	line := fmt.Sprintf("container %s made its usage page grow to %d KiB, which no well-behaved program does; the agent reads only the first %d KiB", c.Container, was>>10, limits.UsageBytes>>10)
	d.Log.Warn(line, "namespace", c.Namespace, "pod", c.Pod)
	d.write(c.PodUID, events.VGPUUsageForged, line)
}
