// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"cmp"
	"context"
	"math"
	"path/filepath"
	"slices"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/internal/registry"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// processes returns the processes of the asker's pod, or all if the asker is the node.
func (c *Collector) processes(ctx context.Context, who registry.Asker) ([]agentapi.Process, error) {
	found, err := c.look(ctx)
	if err != nil {
		return nil, err
	}
	known := map[string]*holder{}
	list := []agentapi.Process{}
	for uuid, sightings := range found.sightings {
		for _, s := range sightings {
			if !who.Node && s.PodUID != who.PodUID {
				continue
			}
			h, ok := known[s.Container]
			if !ok {
				h = c.holder(s.Process, found.holders[s.Container])
				known[s.Container] = h
			}
			list = append(list, c.process(who, s, uuid, h))
		}
	}
	slices.SortFunc(list, func(a, b agentapi.Process) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container),
			cmp.Compare(a.PID, b.PID), cmp.Compare(a.UUID, b.UUID))
	})
	return list, nil
}

func (c *Collector) process(who registry.Asker, s sighting, uuid string, h *holder) agentapi.Process {
	p := agentapi.Process{
		Namespace: h.namespace, Pod: h.pod, Container: h.container, Node: c.Node,
		UUID: uuid, PID: s.InnerPID, Command: s.command, Type: s.APIs.Type(),
		Requests: h.requests,
	}
	if s.Utilisation != nil {
		rounded := tenths(*s.Utilisation)
		p.Utilisation = &rounded
	}
	if who.Node {
		p.PID = uint32(s.PID)
	}
	if s.Bytes > 0 { // 0 means unknown, because even a context takes memory
		p.MemoryUsedBytes = &s.Bytes
	}
	limit, ok := h.limit(uuid)
	if !ok {
		return p
	}
	p.MemoryLimitBytes = limit.MemoryBytes
	part := uint32(request.Whole)
	if limit.ComputePPM > 0 && limit.ComputePPM < request.Whole {
		part = limit.ComputePPM
		p.ComputeLimitPPM, p.ComputeMaximumPPM = part, limit.MaximumPPM
	}
	if s.Utilisation != nil {
		ofShare := tenths(*s.Utilisation * request.Whole / float64(part))
		p.ShareUtilisation = &ofShare
	}
	return p
}

// tenths rounds a percentage to the precision of its measurement.
func tenths(percent float64) float64 { return math.Round(percent*10) / 10 }

// holder is a container, its limits and its requests.
type holder struct {
	namespace, pod, container string
	limits                    []limits.Device
	requests                  map[string]int64
}

// holder returns the container in which a process was seen.
func (c *Collector) holder(p registry.Process, held placement.Allocation) *holder {
	h := &holder{namespace: held.Namespace, pod: held.Pod, container: held.Container}
	if pod, ok := c.Pods.Cached(pods.Ref{UID: p.PodUID}); ok && p.PodUID != "" {
		h.namespace, h.pod = pod.Namespace, pod.Name
		h.requests = request.Amounts(pod, held.Container, c.Config.Dialects)
	}
	h.limits = c.limits(held)
	return h
}

// limits returns the limits in force, from the container's limits page, which only the node can
// write. Without a page, limits returns the allocation.
func (c *Collector) limits(held placement.Allocation) []limits.Device {
	if dir, err := c.Dir(held.PodUID, held.Container); err == nil {
		if devices, err := limits.Read(filepath.Join(dir, limits.LimitsFile)); err == nil {
			return devices
		}
	}
	devices := make([]limits.Device, len(held.Devices))
	for i, d := range held.Devices {
		devices[i] = limits.Device{UUID: d.UUID, MemoryBytes: d.Limit(), ComputePPM: d.ComputePPM}
	}
	return devices
}

func (h *holder) limit(uuid string) (limits.Device, bool) {
	k := slices.IndexFunc(h.limits, func(d limits.Device) bool { return d.UUID == uuid })
	if k < 0 {
		return limits.Device{}, false
	}
	return h.limits[k], true
}
