package detection

import (
	"slices"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/registry"
)

// Kind says where a process runs that uses a GPU and should not.
type Kind string

// Kinds; they are the label of a metric.
const (
	// Bypass: in a container of ours, without the interposer, on a GPU that the
	// container was not given, or through an API that it may not use.
	Bypass Kind = "bypass"
	// Pod: in a pod's container that was given no GPU by us.
	Pod Kind = "pod"
	// Host: outside of all pods.
	Host Kind = "host"

	// unsure: in a container of ours whose usage page cannot be read now. It
	// confirms an earlier finding and is none itself.
	unsure Kind = "unsure"
)

// sighting is a process that uses a GPU.
type sighting struct {
	registry.Process
	uuid  string
	bytes uint64
	apis  gpu.APIs
}

// computes reports whether a process is one that the interposer should be in.
// One of which the driver told no kind of API is taken for one.
func (s sighting) computes() bool { return s.apis == 0 || s.apis.Has(gpu.Compute) }

// limitless are the kinds of API in a set on which the interposer has no hold.
func limitless(apis gpu.APIs) gpu.APIs { return apis & (gpu.Graphics | gpu.Video) }

// container is one of ours that runs.
type container struct {
	placement.Allocation
	// made is when its files were.
	made time.Time
	// interposed: it has pages, and the interposer counts on them.
	interposed bool
	// before and after are its usage page, read before and after the driver
	// was asked; empty where the page cannot be read.
	before, after limits.Usage
	// busy: locks or a lease kept the page from being read.
	busy bool
	// unknown: the page could not be read, and not for what its tenant wrote.
	unknown bool
	// displaced names the files of ours that a program started now would not find, or is nil.
	displaced error
}

// picture is what one look found.
type picture struct {
	// answered are the GPUs of which the driver told the processes.
	answered   map[string]bool
	sightings  []sighting
	containers map[string]container // by the runtime's id
}

// Allowed returns the kinds of API that capabilities of the driver open.
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

// judge reports whether a process should be where it was seen. Beside Compute
// only allowed APIs may be used in a container with limits. A process that uses
// no other than those is not the interposer's, and has no slot.
func (p *picture) judge(s sighting, registered func(registry.Process) bool, allowed gpu.APIs) (kind Kind, ok bool) {
	if s.PodUID == "" {
		return Host, false
	}
	c, ours := p.containers[s.Container]
	switch {
	case !ours:
		return Pod, false
	case len(c.Devices) == 0:
		// One of ours, of which the ledger does not know what it was given.
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
		// Without the interposer, anybody can register and take a slot.
		return Bypass, false
	case registered(s.Process) || c.hasSlot(s.InnerPID):
		return "", true
	case c.unknown:
		return unsure, false
	default:
		return Bypass, false
	}
}

// hasSlot reports whether a process of the container says on its usage page that
// it has this pid: that may be a lie, and what it holds is compared with what
// the page says.
func (c container) hasSlot(pid uint32) bool {
	has := func(u limits.Usage) bool {
		return slices.ContainsFunc(u.Processes, func(p limits.ProcessUsage) bool { return p.PID == pid })
	}
	return has(c.before) || has(c.after)
}

// noise is how much more a process may hold than it accounts for: the driver
// takes memory of its own, for local variables of kernels or code that it loads
// late, of which the process learns at its next allocation.
const noise = 64 << 20 // bytes

// mismatch is a container that holds more of a GPU than its usage page
// reports, or than its limit.
type mismatch struct {
	container string // the runtime's id
	device    int    // in the order of its pages
	held      uint64 // bytes, by the driver
	claimed   uint64 // bytes, by its usage page
	// explained: it holds so much by APIs that do not write to that page, and no
	// more than its limit.
	explained bool
	// unsure: the page could not be read now, and the limit is kept.
	unsure bool
}

// compare finds containers whose usage page cannot be true.
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

// held is what a container's processes hold of a GPU, the part of it that those
// hold which do not compute, and how many they are.
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

// claim is what a usage page says that its container holds of a GPU, with what
// it is about to get.
func claim(u limits.Usage, device int) uint64 {
	if device >= len(u.Devices) {
		return 0
	}
	return u.Devices[device].UsedBytes + u.Devices[device].PendingBytes
}

// confirm keeps of what earlier looks found that which a later one finds, too,
// with the lesser of the bytes. What ends or is freed between two questions is
// so told from what should not be.
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
	// displaced is why no process of its container can be trusted, or nil.
	displaced error
}

// key names a finding for ever.
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
