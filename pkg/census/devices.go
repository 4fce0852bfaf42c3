package census

import (
	"context"
	"errors"
	"slices"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/query"
	"github.com/nri-vgpu/nri-vgpu/pkg/registry"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

var errNoGPU = errors.New("nothing is known of GPUs of this container: its agent may have come up just now, so try again")

// devices are the GPUs of the asker's container, or all.
func (c *Census) devices(ctx context.Context, who registry.Asker) ([]query.Device, error) {
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
	var list []query.Device
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

// ownDevice is what a container holds of a GPU, and may use of its memory.
func (c *Census) ownDevice(index int, held placement.Device, limit uint64, all []sighting, container string) query.Device {
	d := query.Device{Index: index, UUID: held.UUID, MemoryBytes: limit}
	if g, ok := c.gpu(held.UUID); ok {
		d.Name, d.Unhealthy = g.Name, g.Reason
		d.Sharing = c.sharing(g, max(partOf(held.MemoryBytes, request.Usable(g, c.Config)), partOf(uint64(held.ComputePPM), request.Whole)))
	}
	own := slices.DeleteFunc(slices.Clone(all), func(s sighting) bool { return s.Container != container })
	d.MemoryUsedBytes, d.Utilisation = sums(own)
	return d
}

func (c *Census) nodeDevices(found *look) []query.Device {
	rooms := map[string]placement.Room{}
	for _, r := range c.Ledger.Free() {
		rooms[r.UUID] = r
	}
	list := []query.Device{}
	for _, g := range c.GPUs.GPUs() {
		d := query.Device{Index: g.Index, UUID: g.UUID, Name: g.Name, Unhealthy: g.Reason, MemoryBytes: g.MemoryBytes}
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

// taken is the part of a GPU that nobody else can have any more.
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

func (c *Census) gpu(uuid string) (gpu.GPU, bool) {
	gpus := c.GPUs.GPUs()
	k := slices.IndexFunc(gpus, func(g gpu.GPU) bool { return g.UUID == uuid })
	if k < 0 {
		return gpu.GPU{}, false
	}
	return gpus[k], true
}

// sharing is a GPU in shares, by every name under which it is offered.
func (c *Census) sharing(g gpu.GPU, held float64) []query.Sharing {
	if !c.Config.Dialects.MetaGPU.Enabled {
		return nil
	}
	var all []query.Sharing
	for _, s := range c.Config.Dialects.MetaGPU.DeviceSharing {
		if slices.Contains(s.UUIDs, config.AllGPUs) || slices.Contains(s.UUIDs, g.UUID) {
			perGPU := s.PerGPU()
			all = append(all, query.Sharing{
				Resource: s.ResourceName, PerGPU: perGPU,
				ShareBytes: request.Usable(g, c.Config) / uint64(perGPU),
				Held:       roundUp(held * float64(perGPU)),
			})
		}
	}
	return all
}

// roundUp gives whole shares, of which a part that was rounded down to bytes or
// parts per million takes no more than it was meant to.
func roundUp(shares float64) int {
	const rounding = 0.01
	return int(shares + 1 - rounding)
}

// sums are what processes hold together, and have of the time; nil where it is
// not known of one.
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
