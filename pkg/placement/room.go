// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// Room is the remaining capacity of one GPU.
type Room struct {
	UUID  string
	Index int
	// MIG is the place of a MIG device, and zero for a physical GPU.
	MIG     gpu.MIG
	Healthy bool
	// MemoryBytes is the allocatable memory. FreeMemoryBytes is the free part of MemoryBytes.
	MemoryBytes, FreeMemoryBytes uint64
	// FreeComputePPM is the unreserved part of the GPU's time, in parts per
	// million.
	FreeComputePPM uint32
	FreeSlots      int
	// MPS reports whether containers share the GPU through the Multi-Process Service. The service
	// can serve FreeClients more containers.
	MPS         bool
	FreeClients int
	// Holders is the number of containers that may run on the GPU at the same
	// time.
	Holders int
	// Exclusive reports whether a container has the GPU exclusively.
	Exclusive bool
	// Common reports whether containers hold the memory in common, so that no memory is free for
	// other containers.
	Common bool
}

// Free returns the remaining capacity of every GPU, by index.
func (l *Ledger) Free() []Room {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.free()
}

func (l *Ledger) free() []Room {
	taken := l.loads()
	rooms := make([]Room, len(l.cards))
	for i, c := range l.cards {
		rooms[i] = Room{
			UUID:            c.UUID,
			Index:           c.Index,
			MIG:             c.MIG,
			Healthy:         c.Healthy,
			MemoryBytes:     c.usable,
			FreeMemoryBytes: c.usable - min(taken[i].memoryOf(c.usable), c.usable),
			FreeComputePPM:  uint32(request.Whole - min(taken[i].compute, request.Whole)),
			FreeSlots:       max(l.config.Node.SlotsPerGPU-taken[i].slots, 0),
			MPS:             c.mps,
			FreeClients:     max(l.clients()-taken[i].clients, 0),
			Holders:         taken[i].holders,
			Exclusive:       taken[i].exclusive,
			Common:          taken[i].common,
		}
	}
	return rooms
}

// loads returns the load on each card of all pods except the pods in except.
func (l *Ledger) loads(except ...string) []load {
	taken := make([]load, len(l.cards))
	for i := range l.cards {
		id := l.cards[i].UUID
		all := l.taken[id]
		for _, uid := range except {
			all = all.minus(l.pods[uid].loads[id])
		}
		taken[i] = all.load
	}
	return taken
}

// NoRoomError reports that a container fits no GPU, and lists the free capacity.
type NoRoomError struct {
	Namespace, Pod, Container string
	// Share is the container's first share that found no GPU. GPUs is the number of the container's
	// shares.
	Share request.Share
	GPUs  int
	Free  []Room
	// Uncounted reports that the GPUs have room, but the pod would hold more than a quota counts.
	Uncounted bool
}

// Error names the request and the free capacity of every GPU.
func (e *NoRoomError) Error() string {
	if e.Uncounted {
		return fmt.Sprintf("pod %s/%s would hold more than a quota counts, because an init container would have other GPUs than the containers after it, and dialects.native.amounts is %q: request the same number of GPUs in each container, or no GPU in init containers",
			e.Namespace, e.Pod, config.AmountsTotal)
	}
	rooms := make([]string, len(e.Free))
	for i, r := range e.Free {
		rooms[i] = r.String()
	}
	if len(rooms) == 0 {
		rooms = []string{"the node has no GPU"}
	}
	parts := ""
	if e.GPUs > 1 {
		parts = fmt.Sprintf(" as one of %d parts, each on another GPU", e.GPUs)
	}
	text := fmt.Sprintf("no GPU has room for container %q of pod %s/%s, which requests %s%s; free: %s",
		e.Container, e.Namespace, e.Pod, Describe(e.Share), parts, strings.Join(rooms, "; "))
	if e.GPUs > 1 && slices.ContainsFunc(e.Free, func(r Room) bool { return gpu.IsMIG(r.UUID) }) {
		text += "; " + notSeveral
	}
	return text
}

// notSeveral is the reason why a MIG device has no room for a container with several GPUs. A process of
// CUDA uses at most one MIG device, and no GPU beside it.
const notSeveral = "a container with several GPUs gets no MIG device"

// String returns text such as "GPU 0 (GPU-1): 1024 MiB, 70 % of the time, 9
// slots".
func (r Room) String() string {
	name := fmt.Sprintf("GPU %s (%s): ", r.Number(), r.UUID)
	switch {
	case !r.Healthy:
		return name + "unhealthy"
	case r.Exclusive:
		return name + "allocated as a whole"
	}
	name += fmt.Sprintf("%d MiB, %s %% of the time, %d slots",
		r.FreeMemoryBytes/request.MiB, percent(r.FreeComputePPM), r.FreeSlots)
	if r.MPS {
		name += fmt.Sprintf(", %d containers as clients of MPS", r.FreeClients)
	}
	return name
}

// Number returns the GPU's number: "0", and "0:1" for the MIG device 1 of GPU 0.
func (r Room) Number() string { return gpu.Number(r.Index, r.MIG) }

// Lacks returns why a share has no room on the GPU, in text such as "4096 of 6144 MiB are free". If
// the share has room, Lacks returns "". The parameter gpus is the number of GPUs of the share's
// container.
func (r Room) Lacks(s request.Share, gpus int) string {
	switch {
	case !r.Healthy:
		return "it is unhealthy"
	case gpus > 1 && gpu.IsMIG(r.UUID):
		return notSeveral
	case len(s.GPUs) > 0 && !slices.Contains(s.GPUs, r.UUID):
		return "the pod does not accept it"
	case r.Exclusive:
		return "a container holds the whole GPU"
	case s.Exclusive && r.Holders > 0:
		return "it is in use, and the container requests it exclusively"
	}
	var lacks []string
	if need := s.Memory.On(r.MemoryBytes); need > r.FreeMemoryBytes && (!s.Memory.Common || !r.Common) {
		lacks = append(lacks, fmt.Sprintf("%d of %d MiB are free", r.FreeMemoryBytes/request.MiB, need/request.MiB))
	}
	if s.ComputePPM > r.FreeComputePPM {
		lacks = append(lacks, fmt.Sprintf("%s of %s %% of the time are free", percent(r.FreeComputePPM), percent(s.ComputePPM)))
	}
	if s.Slots > r.FreeSlots {
		lacks = append(lacks, fmt.Sprintf("%d of %d slots are free", r.FreeSlots, s.Slots))
	}
	if r.MPS && r.FreeClients < 1 {
		lacks = append(lacks, "MPS serves no further container")
	}
	return strings.Join(lacks, ", ")
}

// Emptied returns the capacity of the GPU once it is healthy and no container holds a part of it. A
// share that Emptied lacks never has room.
func (r Room) Emptied() Room {
	r.Healthy, r.Exclusive, r.Common, r.Holders = true, false, false, 0
	r.FreeMemoryBytes, r.FreeComputePPM = r.MemoryBytes, request.Whole
	r.FreeSlots, r.FreeClients = math.MaxInt, math.MaxInt
	return r
}

// clients returns the number of containers that the Multi-Process Service serves on a GPU.
func (l *Ledger) clients() int {
	mps := l.config.Sharing.MPS
	return mps.ClientsPerGPU / max(mps.ClientsPerContainer, 1)
}

// Describe returns text such as "6144 MiB and 50 % of the time of one GPU".
func Describe(s request.Share) string {
	var b strings.Builder
	switch m := s.Memory; {
	case m.Common:
		b.WriteString("memory in common")
	case m.GiB != 0:
		fmt.Fprintf(&b, "%d GiB", m.GiB)
	case m.Bytes != 0:
		fmt.Fprintf(&b, "%d MiB", m.Bytes/request.MiB)
	default:
		fmt.Fprintf(&b, "%s %% of the memory", percent(m.PPM))
	}
	if s.ComputePPM != 0 {
		fmt.Fprintf(&b, " and %s %% of the time", percent(s.ComputePPM))
	}
	b.WriteString(" of one GPU")
	if s.Exclusive {
		b.WriteString(" without other containers")
	}
	if len(s.GPUs) > 0 {
		fmt.Fprintf(&b, " out of %s", strings.Join(s.GPUs, ", "))
	}
	return b.String()
}

// percent formats parts per million as percent, with no more digits than needed.
func percent(ppm uint32) string {
	return fmt.Sprintf("%g", float64(ppm)*100/request.Whole)
}
