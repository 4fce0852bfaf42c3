package placement

import "github.com/nri-vgpu/nri-vgpu/pkg/request"

// load is what some containers take of one GPU.
type load struct {
	memory  uint64 // bytes, without what is held in common
	compute uint64 // parts per million, of those with a limit
	slots   int
	holders int
	// clients are holders that the Multi-Process Service serves.
	clients int
	// common: somebody holds the memory in common.
	common bool
	// exclusive: somebody wants the GPU for itself.
	exclusive bool
	// clash: somebody who wants it for itself runs beside a container of the
	// same pod.
	clash bool
}

// with adds a container that runs at the same time.
func (l load) with(d Device) load {
	if d.MemoryInCommon {
		l.common = true
	} else {
		l.memory += d.MemoryBytes
	}
	l.compute += uint64(d.ComputePPM)
	l.slots += d.Slots
	l.holders++
	if d.MPS {
		l.clients++
	}
	l.exclusive = l.exclusive || d.Exclusive
	l.clash = l.clash || l.exclusive && l.holders > 1
	return l
}

// peak is what must be held for containers that run one after the other.
func (l load) peak(o load) load {
	return load{
		memory:    max(l.memory, o.memory),
		compute:   max(l.compute, o.compute),
		slots:     max(l.slots, o.slots),
		holders:   max(l.holders, o.holders),
		clients:   max(l.clients, o.clients),
		common:    l.common || o.common,
		exclusive: l.exclusive || o.exclusive,
		clash:     l.clash || o.clash,
	}
}

// beside adds what another pod takes.
func (l load) beside(o load) load {
	return load{
		memory:    l.memory + o.memory,
		compute:   l.compute + o.compute,
		slots:     l.slots + o.slots,
		holders:   l.holders + o.holders,
		clients:   l.clients + o.clients,
		common:    l.common || o.common,
		exclusive: l.exclusive || o.exclusive,
		clash:     l.clash || o.clash,
	}
}

// memoryOf is the memory taken of a GPU with total bytes. What is held in
// common leaves nothing to guarantee to others.
func (l load) memoryOf(total uint64) uint64 {
	if l.common {
		return l.memory + total
	}
	return l.memory
}

// podLoad is what a pod takes of one GPU while it lives. containers are in
// the order of the spec. An init container runs beside the sidecars that were
// started before it, and what it held is used again by those that follow; app
// containers and sidecars run together.
func podLoad(containers []Allocation, uuid string) load {
	var running, top load
	for _, c := range containers {
		now := running
		for _, d := range c.Devices {
			if d.UUID == uuid {
				now = now.with(d)
			}
		}
		top = top.peak(now)
		if c.Kind != request.Init {
			running = now
		}
	}
	return top
}
