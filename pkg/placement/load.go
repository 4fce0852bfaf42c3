// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"slices"

	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// load is the resources that some containers take of one GPU.
type load struct {
	memory  uint64 // bytes, without memory held in common
	compute uint64 // parts per million, of containers with a limit
	slots   int
	holders int
	// clients are the holders that the Multi-Process Service serves.
	clients int
	// common reports whether a container holds the memory in common.
	common bool
	// exclusive reports whether a container requires the GPU exclusively.
	exclusive bool
	// clash reports whether a container that requires the GPU exclusively runs beside a container
	// of the same pod.
	clash bool
}

// with adds the load of a container that runs at the same time.
func (l load) with(d *Device) load {
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

// peak returns the load to reserve for containers that run one after the other.
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

// beside adds the load of another pod.
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

// memoryOf returns the memory taken of a GPU with total bytes. Memory held in common counts as the
// whole GPU, since no memory remains to guarantee to other containers.
func (l load) memoryOf(total uint64) uint64 {
	if l.common {
		return l.memory + total
	}
	return l.memory
}

// total is the load of several pods on one GPU. total counts the pods with memory in common and the
// pods with exclusive use, so that minus can subtract a pod.
type total struct {
	load
	commons, exclusives int
}

// plus adds the load of a pod.
func (t total) plus(l load) total { return t.changed(l, 1) }

// minus subtracts a load that plus has added.
func (t total) minus(l load) total { return t.changed(l, -1) }

func (t total) changed(l load, sign int) total {
	t.memory += uint64(sign) * l.memory
	t.compute += uint64(sign) * l.compute
	t.slots += sign * l.slots
	t.holders += sign * l.holders
	t.clients += sign * l.clients
	if l.common {
		t.commons += sign
	}
	if l.exclusive {
		t.exclusives += sign
	}
	t.common, t.exclusive = t.commons > 0, t.exclusives > 0
	return t
}

// column is a pod's load on one GPU, by its containers with a part of the GPU in the order of the
// spec. An init container runs beside the sidecars started before it, and later containers reuse
// its part. App containers and sidecars run together.
type column struct {
	uuid string
	rows []row
}

// row is the load of a pod up to one of its containers with a part of the GPU.
type row struct {
	container int
	// running is the load after the container has started or, for an init container, has ended. top
	// is the largest load at any time before running.
	running, top load
}

func newColumn(containers []Allocation, uuid string) column {
	c := column{uuid: uuid}
	for i := range containers {
		if slices.ContainsFunc(containers[i].Devices, func(d Device) bool { return d.UUID == uuid }) {
			c.rows = append(c.rows, row{container: i})
		}
	}
	c.count(containers, 0)
	return c
}

// load returns the pod's load on the GPU during its lifetime.
func (c *column) load() load {
	if len(c.rows) == 0 {
		return load{}
	}
	return c.rows[len(c.rows)-1].top
}

// add adds a container with a new part of the GPU. In most cases the new row is the last row.
func (c *column) add(containers []Allocation, container int) {
	at := len(c.rows)
	for at > 0 && c.rows[at-1].container > container {
		at--
	}
	c.rows = slices.Insert(c.rows, at, row{container: container})
	c.count(containers, at)
}

// remove removes a container without its part of the GPU.
func (c *column) remove(containers []Allocation, container int) {
	at := len(c.rows) - 1
	for c.rows[at].container != container {
		at--
	}
	c.rows = slices.Delete(c.rows, at, at+1)
	c.count(containers, at)
}

// count recomputes the rows from index from on.
func (c *column) count(containers []Allocation, from int) {
	var before row
	if from > 0 {
		before = c.rows[from-1]
	}
	for i := from; i < len(c.rows); i++ {
		r := &c.rows[i]
		container := &containers[r.container]
		now := before.running
		for k := range container.Devices {
			if d := &container.Devices[k]; d.UUID == c.uuid {
				now = now.with(d)
			}
		}
		r.top, r.running = before.top.peak(now), now
		if container.Kind == request.Init {
			r.running = before.running
		}
		before = *r
	}
}

// peakOf returns the largest load of a pod's containers on all GPUs together at any time.
func peakOf(containers []Allocation) load {
	var running, top load
	for i := range containers {
		now := running
		for k := range containers[i].Devices {
			now = now.with(&containers[i].Devices[k])
		}
		if top = top.peak(now); containers[i].Kind != request.Init {
			running = now
		}
	}
	return top
}
