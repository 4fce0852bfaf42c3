// SPDX-License-Identifier: Apache-2.0

package detect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// busyPatience is the time for which a usage page may stay busy until it counts as broken. The
// detector skips a busy page only for a shorter time.
const busyPatience = 2 * time.Minute

// busyPage is a usage page that locks or leases keep from being read.
type busyPage struct {
	since    time.Time
	reported bool
}

// usage reads a container's usage page. If the read fails for a cause other than the page's
// content, usage marks the container as busy or unknown. A page that the tenant has corrupted
// reports no use.
func (d *Detector) usage(ctx context.Context, c *container) limits.Usage {
	if !c.interposed {
		return limits.Usage{}
	}
	dir, err := d.Dir(c.PodUID, c.Container)
	if err != nil {
		return limits.Usage{}
	}
	path := filepath.Join(dir, limits.UsageFile)
	d.cut(ctx, c, path)
	usage, err := limits.ReadUsage(path)
	if err == nil {
		return usage
	}
	d.Log.Debug("failed to read a usage page", "pod", c.Pod, "container", c.Container, "error", err)
	switch {
	case errors.Is(err, limits.ErrBusy):
		c.busy = true
	case !broken(dir, err):
		c.unknown = true
	}
	return limits.Usage{}
}

// broken reports whether the tenant's content makes a usage page unreadable. The tenant cannot
// write to the limits page. If both pages have another version, another release created them.
func broken(dir string, err error) bool {
	if errors.Is(err, limits.ErrVersion) {
		_, err := limits.Read(filepath.Join(dir, limits.LimitsFile))
		return err == nil
	}
	return errors.Is(err, limits.ErrForeign) || errors.Is(err, limits.ErrTruncated) || errors.Is(err, limits.ErrCorrupt)
}

// settle marks containers with a busy page as unknown for d.patience. After d.patience, settle
// reports that the container's tenant keeps the page busy.
func (d *Detector) settle(p *picture) {
	maps.DeleteFunc(d.busy, func(id string, _ busyPage) bool { return !p.containers[id].busy })
	for id, c := range p.containers {
		if !c.busy {
			continue
		}
		page, known := d.busy[id]
		if !known {
			page.since = time.Now()
		}
		if time.Since(page.since) < d.patience {
			c.unknown = true
			p.containers[id] = c
		} else if !page.reported {
			page.reported = true
			d.reportBusy(c)
		}
		d.busy[id] = page
	}
}

func (d *Detector) reportBusy(c container) {
	line := fmt.Sprintf("container %s prevents reads of its usage page by locks or leases; the agent treats the page as reporting no use", c.Container)
	d.Log.Warn(line, "namespace", c.Namespace, "pod", c.Pod)
	d.write(c.PodUID, events.VGPUUsageForged, line)
}

// certain returns the findings of a first check that depend on no unreadable page.
func certain(findings []finding) []finding {
	return slices.DeleteFunc(findings, func(f finding) bool { return f.kind == unsure })
}

// certain returns the mismatches of a first check that depend on no unreadable page. certain also
// keeps all mismatches of containers with an observation, so that observe renews the observation.
func (d *Detector) certain(mismatches []mismatch) []mismatch {
	return slices.DeleteFunc(mismatches, func(m mismatch) bool { return m.unsure && !d.observed[m.container] })
}
