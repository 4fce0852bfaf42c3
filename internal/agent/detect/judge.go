// SPDX-License-Identifier: Apache-2.0

package detect

import (
	"slices"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/registry"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

// Kind classifies where a process runs that uses a GPU without permission.
type Kind string

// Kinds are the values of a metric's label.
const (
	// Bypass means that the process runs in a container of ours, but without the interposer, on
	// another container's GPU, or through a forbidden API.
	Bypass Kind = "bypass"
	// Pod means that the process runs in a pod's container to which we allocated no GPU.
	Pod Kind = "pod"
	// Host means that the process runs outside of all pods.
	Host Kind = "host"

	// unsure means that the process runs in a container of ours whose usage page is currently
	// unreadable. The kind only confirms an earlier finding.
	unsure Kind = "unsure"
)

// sighting is a process that uses a GPU.
type sighting struct {
	registry.Process
	uuid  string
	bytes uint64
	apis  gpu.APIs
}

// computes reports whether the interposer should be in a process. If the driver reports no kind of
// API for a process, the process counts as computing.
func (s sighting) computes() bool { return s.apis == 0 || s.apis.Has(gpu.Compute) }

// limitless returns the kinds of API in a set that the interposer cannot limit.
func limitless(apis gpu.APIs) gpu.APIs { return apis & (gpu.Graphics | gpu.Video) }

// container is a running container of ours.
type container struct {
	placement.Allocation
	// made is the creation time of the container's files.
	made time.Time
	// interposed reports whether the container has pages, and the interposer keeps its accounts on
	// the pages.
	interposed bool
	// before and after are the container's usage page before and after the query of the driver.
	// Each page is empty if its read failed.
	before, after limits.Usage
	// busy reports whether locks or a lease kept the page from being read.
	busy bool
	// unknown reports whether the page could not be read, for a cause other than the tenant's
	// content.
	unknown bool
	// displaced names the files of ours that a program started now would not find, or is nil.
	displaced error
}

// picture is the result of one check.
type picture struct {
	// answered are the GPUs whose processes the driver reported.
	answered   map[string]bool
	sightings  []sighting
	containers map[string]container // by the runtime's id
}

// Allowed returns the kinds of API that capabilities of the driver enable.
func Allowed(capabilities []string) gpu.APIs {
	var apis gpu.APIs
	for _, capability := range capabilities {
		switch capability {
		case config.CapabilityGraphics, config.CapabilityDisplay, config.CapabilityNGX:
			apis |= gpu.Graphics
		case config.CapabilityVideo:
			apis |= gpu.Video
		}
	}
	return apis
}

// judge reports whether a process may use the GPU on which the driver listed the process. In a
// container with limits, a process may use Compute and the allowed APIs. A process that uses only
// allowed APIs other than Compute has no interposer and no slot.
func (p *picture) judge(s sighting, registered func(registry.Process) bool, allowed gpu.APIs) (kind Kind, ok bool) {
	if s.PodUID == "" {
		return Host, false
	}
	c, ours := p.containers[s.Container]
	switch {
	case !ours:
		return Pod, false
	case len(c.Devices) == 0:
		// The ledger has no record of this container's allocation.
		return "", true
	case !slices.ContainsFunc(c.Devices, func(d placement.Device) bool { return d.UUID == s.uuid }):
		return Bypass, false
	case !c.interposed:
		return "", true
	case !allowed.Has(limitless(s.apis)):
		return Bypass, false
	case !s.computes():
		return "", true
	case c.displaced != nil:
		// A process without the interposer can also register and take a slot.
		return Bypass, false
	case registered(s.Process) || c.hasSlot(s.InnerPID):
		return "", true
	case c.unknown:
		return unsure, false
	default:
		return Bypass, false
	}
}

// hasSlot reports whether a slot of the container's usage page carries this pid. The slot may be
// forged, so the caller compares the process's memory with the page.
func (c container) hasSlot(pid uint32) bool {
	has := func(u limits.Usage) bool {
		return slices.ContainsFunc(u.Processes, func(p limits.ProcessUsage) bool { return p.PID == pid })
	}
	return has(c.before) || has(c.after)
}

// noise is the memory that a process may hold beyond its own accounts. The driver takes memory for
// local variables of kernels or for code that it loads late. The process measures and charges that
// memory at its next allocation.
const noise = 64 << 20 // bytes

// mismatch is a container that holds more of a GPU than its usage page reports or its limit allows.
type mismatch struct {
	container string // the runtime's id
	device    int    // in the order of its pages
	held      uint64 // bytes, by the driver
	claimed   uint64 // bytes, by its usage page
	// explained reports whether APIs that do not write to the page hold the excess, and the
	// container is within its limit.
	explained bool
	// unsure reports whether the page could not be read now, and the container is within its limit.
	unsure bool
}

// compare returns the containers that hold more than their usage page reports or their limit
// allows.
func (p *picture) compare() []mismatch {
	var found []mismatch
	for id, c := range p.containers {
		for i, d := range c.Devices {
			if !c.interposed || !p.answered[d.UUID] {
				continue
			}
			held, apart, processes := p.held(id, d.UUID)
			claimed := max(claim(c.before, i), claim(c.after, i))
			if within := held <= d.Limit()+noise; !within || held > claimed+noise*processes {
				explained := within && held-apart <= claimed+noise*processes
				found = append(found, mismatch{id, i, held, claimed, explained, within && c.unknown})
			}
		}
	}
	return found
}

// held returns the memory of a GPU that a container's processes hold, and the number of processes.
// The result apart is the memory of processes that do not compute.
func (p *picture) held(id, uuid string) (bytes, apart, processes uint64) {
	for _, s := range p.sightings {
		if s.Container == id && s.uuid == uuid {
			bytes += s.bytes
			processes++
			if !s.computes() {
				apart += s.bytes
			}
		}
	}
	return bytes, apart, processes
}

// claim returns the memory of a GPU that a usage page reports for its container: allocated and
// claimed.
func claim(u limits.Usage, device int) uint64 {
	if device >= len(u.Devices) {
		return 0
	}
	return u.Devices[device].UsedBytes + u.Devices[device].PendingBytes
}

// confirmMismatches keeps the mismatches that both the earlier checks and a later check found, with
// the smaller of the two held amounts. confirmMismatches thus drops processes that ended, and
// memory that was freed, between the driver's answer and the read of the page.
func confirmMismatches(earlier, later []mismatch) []mismatch {
	var both []mismatch
	for _, e := range earlier {
		k := slices.IndexFunc(later, func(l mismatch) bool { return l.container == e.container && l.device == e.device })
		if k >= 0 {
			e.held, e.claimed = min(e.held, later[k].held), max(e.claimed, later[k].claimed)
			e.explained = e.explained || later[k].explained
			both = append(both, e)
		}
	}
	return both
}

// finding is a process that should not use the GPU.
type finding struct {
	sighting
	kind Kind
	// displaced is the error because of which no process of the finding's container can be trusted,
	// or nil.
	displaced error
}

// key identifies a finding across checks.
type key struct {
	pid     int
	started uint64
	uuid    string
}

func (f finding) key() key { return key{f.PID, f.Started, f.uuid} }

func confirmFindings(earlier, later []finding) []finding {
	var both []finding
	for _, l := range later {
		k := slices.IndexFunc(earlier, func(e finding) bool { return e.key() == l.key() })
		if k < 0 {
			continue
		}
		if l.kind == unsure {
			l.kind = earlier[k].kind
		}
		both = append(both, l)
	}
	return both
}
