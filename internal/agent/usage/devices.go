// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"context"
	"errors"
	"slices"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/registry"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

var errNoGPU = errors.New("the agent knows no GPUs of this container: retry, because the agent may have just started")

// devices returns the GPUs of the asker's container, or all GPUs if the asker is the node.
func (c *Collector) devices(ctx context.Context, who registry.Asker) ([]agentapi.Device, error) {
	found, err := c.look(ctx)
	if err != nil {
		return nil, err
	}
	if who.Node {
		return c.nodeDevices(found), nil
	}
	held, ok := found.holders[who.Container]
	if !ok || len(held.Devices) == 0 {
		return nil, errNoGPU
	}
	var list []agentapi.Device
	inForce := c.limits(held)
	for i, d := range held.Devices {
		limit := d.Limit()
		if k := slices.IndexFunc(inForce, func(l limits.Device) bool { return l.UUID == d.UUID }); k >= 0 {
			limit = inForce[k].MemoryBytes
		}
		list = append(list, c.ownDevice(i, d, limit, found.sightings[d.UUID], who.Container))
	}
	return list, nil
}

// ownDevice returns the state of a container's GPU, with the container's limit and use of memory. The
// index counts the container's GPUs, so it is not combined with the place of a MIG device on the node.
func (c *Collector) ownDevice(index int, held placement.Device, limit uint64, all []sighting, container string) agentapi.Device {
	d := agentapi.Device{Index: index, UUID: held.UUID, MemoryBytes: limit}
	if g, ok := c.gpu(held.UUID); ok {
		d.Name, d.Unhealthy = g.Name, g.Reason
		d.Sharing = c.sharing(g, max(partOf(held.MemoryBytes, request.Usable(g, c.Config)), partOf(uint64(held.ComputePPM), request.Whole)))
	}
	own := slices.DeleteFunc(slices.Clone(all), func(s sighting) bool { return s.Container != container })
	d.MemoryUsedBytes, d.Utilisation = sums(own)
	return d
}

func (c *Collector) nodeDevices(found *look) []agentapi.Device {
	rooms := map[string]placement.Room{}
	for _, r := range c.Ledger.Free() {
		rooms[r.UUID] = r
	}
	list := []agentapi.Device{}
	for _, g := range c.GPUs.GPUs() {
		d := agentapi.Device{Index: g.Index, UUID: g.UUID, Name: g.Name, MIG: migOf(g), Unhealthy: g.Reason, MemoryBytes: g.MemoryBytes}
		if r, ok := rooms[g.UUID]; ok {
			d.Sharing = c.sharing(g, taken(r))
		}
		if _, answered := found.sightings[g.UUID]; answered {
			d.MemoryUsedBytes, d.Utilisation = sums(found.sightings[g.UUID])
		}
		list = append(list, d)
	}
	return list
}

// migOf returns the description of a MIG device, or a zero value for a physical GPU.
func migOf(g gpu.GPU) agentapi.MIG {
	return agentapi.MIG{Parent: g.MIG.Parent, Index: g.MIG.Index, Profile: g.Profile()}
}

// taken returns the part of a GPU that is not available to other containers.
func taken(r placement.Room) float64 {
	if r.Exclusive {
		return 1
	}
	return max(partOf(r.MemoryBytes-r.FreeMemoryBytes, r.MemoryBytes), partOf(uint64(request.Whole-r.FreeComputePPM), request.Whole))
}

func partOf(n, whole uint64) float64 {
	if whole == 0 {
		return 0
	}
	return min(float64(n)/float64(whole), 1)
}

func (c *Collector) gpu(uuid string) (gpu.GPU, bool) {
	gpus := c.GPUs.GPUs()
	k := slices.IndexFunc(gpus, func(g gpu.GPU) bool { return g.UUID == uuid })
	if k < 0 {
		return gpu.GPU{}, false
	}
	return gpus[k], true
}

// sharing returns the shares of a GPU, by every resource name that offers shares of the GPU.
func (c *Collector) sharing(g gpu.GPU, held float64) []agentapi.Sharing {
	if !c.Config.Dialects.MetaGPU.Enabled {
		return nil
	}
	var all []agentapi.Sharing
	for _, s := range c.Config.Dialects.MetaGPU.DeviceSharing {
		if slices.Contains(s.UUIDs, config.AllGPUs) || slices.Contains(s.UUIDs, g.UUID) {
			perGPU := s.PerGPU()
			all = append(all, agentapi.Sharing{
				Resource: s.ResourceName, PerGPU: perGPU,
				ShareBytes: request.Usable(g, c.Config) / uint64(perGPU),
				Held:       roundUp(held * float64(perGPU)),
			})
		}
	}
	return all
}

// roundUp returns whole shares. A tolerance covers parts that were rounded down to bytes or to
// parts per million, so that they take no extra share.
func roundUp(shares float64) int {
	const rounding = 0.01
	return int(shares + 1 - rounding)
}

// sums returns the memory and the time of all processes together. A sum is nil if the value of one
// process is unknown.
func sums(list []sighting) (memory *uint64, utilisation *float64) {
	bytes, percent := uint64(0), 0.0
	memory, utilisation = &bytes, &percent
	for _, s := range list {
		if bytes += s.Bytes; s.Bytes == 0 {
			memory = nil
		}
		if s.Utilisation == nil {
			utilisation = nil
		} else {
			percent = tenths(percent + *s.Utilisation)
		}
	}
	return memory, utilisation
}
