// SPDX-License-Identifier: Apache-2.0

package detect

import "github.com/nri-vgpu/nri-vgpu/internal/kube/events"

// reportRefusals writes an Event for each container whose processes were refused memory at their
// limit since the last check. The count comes from the container's own page; a tenant that
// falsifies the count only produces Events on its own pod. The earlier agent reported the refusals
// from before this agent's start.
func (d *Detector) reportRefusals(p *picture) {
	before := d.refused
	d.refused = make(map[string][]uint64, len(p.containers))
	reports := 0
	for id, c := range p.containers {
		if had, known := before[id]; known && (c.unknown || c.busy) {
			d.refused[id] = had
			continue
		}
		counts := make([]uint64, len(c.before.Devices))
		had, known := before[id]
		for i, device := range c.before.Devices {
			counts[i] = device.Refusals
			last := uint64(0)
			if i < len(had) {
				last = had[i]
			}
			if !known && c.made.Before(d.began) || counts[i] <= last || i >= len(c.Devices) || reports == maxReported {
				continue
			}
			reports++
			// The text never changes, so that Kubernetes counts repetitions of one Event.
			d.writeRefusal(c, i)
		}
		d.refused[id] = counts
	}
}

func (d *Detector) writeRefusal(c container, device int) {
	pod, ok := d.pod(c.PodUID)
	if !ok {
		return
	}
	held := c.Devices[device]
	d.Events.OnPod(events.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}, events.VGPUMemoryLimitReached,
		"container %q reached its memory limit of %d MiB on %s: raise the limit, or let the program use less memory", c.Container, held.Limit()>>20, held.UUID)
}
