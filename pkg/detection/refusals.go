package detection

import "github.com/nri-vgpu/nri-vgpu/pkg/events"

// tellRefusals writes an Event for each container whose processes were refused
// memory at their limit since the last look. It is the container's own account: who
// falsifies it tells of himself. What was refused before this agent came was told by
// the one before.
func (d *Detector) tellRefusals(p *picture) {
	before := d.refused
	d.refused = make(map[string][]uint64, len(p.containers))
	said := 0
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
			if !known && c.made.Before(d.began) || counts[i] <= last || i >= len(c.Devices) || said == maxSaid {
				continue
			}
			said++
			// Always the same words, so that it is one Event whose count grows.
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
		"container %q was refused memory at its limit of %d MiB of %s: have it ask for more, or use less", c.Container, held.Limit()>>20, held.UUID)
}
