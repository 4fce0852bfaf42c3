// SPDX-License-Identifier: Apache-2.0

// Package selfcheck compares the GPU time that containers are charged, by their usage pages, with
// the driver's samples of their processes. The driver names the active process a few times a
// second. The comparison accounts for the sampling error of the driver's samples. The package only
// reports the result, and does not correct the meter.
package selfcheck

import (
	"context"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/registry"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

const (
	// every is the time between two queries. The driver keeps its samples for some seconds.
	every = time.Second
	// latest is the longest time between two queries that are compared. After a longer time,
	// samples may be missing.
	latest = 3 * time.Second / 2
	// Window is the recent time that the check judges. At 30 % of the time and six samples a
	// second, 3 sigma are 2.3 points.
	Window = 10 * time.Minute
	// ahead is the amount by which a container's charge at a query may exceed the elapsed time, for
	// work that has yet to run.
	ahead = time.Second
)

// GPUs returns the driver's samples.
type GPUs interface {
	Samples(ctx context.Context, since time.Time) (map[string]gpu.Samples, error)
}

// Containers are the running containers.
type Containers interface {
	// Holders returns the allocation of each container, by the runtime's id.
	Holders() map[string]placement.Allocation
}

// Options configures a Checker.
type Options struct {
	GPUs       GPUs
	Containers Containers
	// Dir returns the directory of a container's files.
	Dir func(podUID, container string) (string, error)
	// Look reads the kernel's data about a process, by its pid.
	Look func(pid int) (registry.Process, error)
	// Window is the recent time that the check judges.
	Window time.Duration
	Log    *slog.Logger
}

// Place is a container on a GPU.
type Place struct{ PodUID, Container, UUID string }

// Checker compares metered with observed GPU time. Checker is safe for concurrent use.
type Checker struct {
	Options

	now func() time.Time

	// Only the loop uses the fields from at to failed.
	at      time.Time            // of the last query
	cursors map[string]time.Time // the latest sample, by GPU
	rhythms map[string]*rhythm   // by GPU
	busies  map[string]*busy     // by GPU
	owners  map[int]string       // the container of a process, by pid
	failed  bool                 // whether the driver failed at the last query

	mu     sync.Mutex
	checks map[Place]*check
}

// check is the state of a container on a GPU.
type check struct {
	namespace, pod string
	last           map[process]time.Duration // the charge of each process up to the last query
	window         window
	period         time.Duration
	observed       time.Duration // in total
	metered        time.Duration
}

// process identifies a process by its slot on the usage page.
type process struct {
	pid      uint32
	attached time.Duration
}

// New returns a checker that does nothing until Run.
func New(opts Options) *Checker {
	return &Checker{
		Options: opts, now: time.Now, cursors: map[string]time.Time{}, rhythms: map[string]*rhythm{}, busies: map[string]*busy{},
		owners: map[int]string{}, checks: map[Place]*check{},
	}
}

// Run queries the driver once a second until ctx ends. Run does not ask the driver while no
// container has a limit on time.
func (c *Checker) Run(ctx context.Context) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			c.step(ctx)
		}
	}
}

// charged is the GPU time that the processes of one container were charged on one GPU.
type charged struct {
	held placement.Allocation
	id   string // the runtime's id of the container
	by   map[process]time.Duration
}

func (c *Checker) step(ctx context.Context) {
	all := c.read()
	if len(all) == 0 {
		c.forget()
		return
	}
	now := c.now()
	samples, err := c.sample(ctx, now)
	c.logOnce(err)
	passed := now.Sub(c.at)
	c.at = now
	whole := err == nil && passed > 0 && passed <= latest
	seen := c.attribute(samples)
	c.mu.Lock()
	defer c.mu.Unlock()
	for p, has := range all {
		known := c.checks[p]
		if known == nil {
			known = &check{window: window{span: c.Window}}
			c.checks[p] = known
		}
		known.namespace, known.pod = has.held.Namespace, has.held.Pod
		known.look(has.by, whole, Tally{Elapsed: passed, Observed: seen[owned{has.id, p.UUID}]}, c.rhythms[p.UUID])
	}
	maps.DeleteFunc(c.checks, func(p Place, _ *check) bool { _, ok := all[p]; return !ok })
}

// logOnce logs a failure of the driver once.
func (c *Checker) logOnce(err error) {
	if err != nil && !c.failed {
		c.Log.Warn("failed to read the driver's samples of GPU time: metered time is not checked", "error", err)
	}
	c.failed = err != nil
}

func (c *Checker) forget() {
	clear(c.cursors)
	clear(c.rhythms)
	clear(c.busies)
	clear(c.owners)
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.checks)
}

// read reads the usage pages of all containers with a limit on time.
func (c *Checker) read() map[Place]charged {
	all := map[Place]charged{}
	for id, held := range c.Containers.Holders() {
		dir, err := c.Dir(held.PodUID, held.Container)
		if err != nil {
			continue
		}
		devices, err := limits.Read(filepath.Join(dir, limits.LimitsFile))
		if err != nil {
			continue // whole GPUs have no page
		}
		var usage limits.Usage
		for i, d := range devices {
			if d.ComputePPM == limits.NoComputeLimit || d.MPS {
				continue
			}
			if usage.Devices == nil {
				if usage, err = limits.ReadUsage(filepath.Join(dir, limits.UsageFile)); err != nil || len(usage.Devices) != len(devices) {
					break
				}
			}
			all[Place{held.PodUID, held.Container, d.UUID}] = charged{held, id, chargedOn(usage, i)}
		}
	}
	return all
}

func chargedOn(usage limits.Usage, device int) map[process]time.Duration {
	by := make(map[process]time.Duration, len(usage.Processes))
	for _, p := range usage.Processes {
		by[process{p.PID, p.Attached}] += p.Devices[device].GPUTime
	}
	return by
}

// sample returns the new samples by GPU, and updates each GPU's rhythm.
func (c *Checker) sample(ctx context.Context, now time.Time) (map[string]gpu.Samples, error) {
	since := now.Add(-every)
	for _, cursor := range c.cursors {
		if cursor.Before(since) && now.Sub(cursor) < 2*latest {
			since = cursor
		}
	}
	found, err := c.GPUs.Samples(ctx, since)
	if err != nil {
		// The next query ignores the samples up to now.
		for uuid := range c.cursors {
			c.cursors[uuid] = now
		}
		clear(c.busies)
		return nil, err
	}
	fresh := make(map[string]gpu.Samples, len(found))
	for uuid, sampled := range found {
		cursor := c.cursors[uuid]
		if cursor.After(now) {
			cursor = since // the node's clock was set back
		}
		list := valid(sampled.Processes, cursor, now.Add(latest))
		for _, s := range list {
			if s.At.After(cursor) {
				cursor = s.At
			}
		}
		c.cursors[uuid] = cursor
		if c.rhythms[uuid] == nil {
			c.rhythms[uuid] = &rhythm{}
		}
		c.rhythms[uuid].add(list)
		fresh[uuid] = gpu.Samples{Processes: list, Loads: sampled.Loads}
	}
	return fresh, nil
}

// valid returns the samples after a time and until another time. Some drivers also return samples with
// invalid values or times.
func valid(samples []gpu.Sample, after, until time.Time) []gpu.Sample {
	var list []gpu.Sample
	for _, s := range samples {
		if s.Percent <= 100 && s.At.After(after) && !s.At.After(until) {
			list = append(list, s)
		}
	}
	return list
}

// owned is a container, by the runtime's id, on a GPU.
type owned struct{ container, uuid string }

// attribute sums up the GPU time of each container from the samples of its processes. A process
// that has ended counts for its container of the last query.
func (c *Checker) attribute(samples map[string]gpu.Samples) map[owned]time.Duration {
	seen := map[owned]time.Duration{}
	owners := map[int]string{}
	for uuid, sampled := range samples {
		worth := c.worth(uuid, sampled)
		for _, s := range sampled.Processes {
			container, known := owners[s.PID]
			if !known {
				container = c.owners[s.PID]
				if p, err := c.Look(s.PID); err == nil {
					container = p.Container
				}
				owners[s.PID] = container
			}
			seen[owned{container, uuid}] += worth * time.Duration(s.Percent) / 100
		}
	}
	c.owners = owners
	return seen
}

// worth returns the GPU time that a sample of 100 % represents. Without the GPU's load from the
// driver, worth returns one period.
func (c *Checker) worth(uuid string, sampled gpu.Samples) time.Duration {
	if c.busies[uuid] == nil {
		c.busies[uuid] = &busy{}
	}
	if !c.busies[uuid].add(sampled.Loads, c.at.Add(latest)) {
		return c.rhythms[uuid].period()
	}
	parts := 0.0
	for _, s := range sampled.Processes {
		parts += float64(s.Percent) / 100
	}
	return c.busies[uuid].scale(parts)
}

// look adds the container's charge and observed time since the last query. A query counts only if
// the container has the same processes as at the last query. After a change of processes, a part of
// the charge or of the samples is missing.
func (k *check) look(by map[process]time.Duration, whole bool, t Tally, r *rhythm) {
	last := k.last
	k.last = by
	if !whole || r == nil || len(by) != len(last) {
		return
	}
	for p, now := range by {
		before, known := last[p]
		if !known {
			return
		}
		t.Metered += now - before
	}
	t.Metered = min(max(t.Metered, -ahead), t.Elapsed+ahead) // the charge is a claim
	k.period = r.period()
	k.window.add(t)
	k.observed += t.Observed
	k.metered += t.Metered
}

// Verdict returns the comparison of a container on a GPU; ok is false if no comparison exists.
func (c *Checker) Verdict(p Place) (v Verdict, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.checks[p]
	if k == nil || k.period == 0 {
		return Verdict{}, false
	}
	return judge(k.window.sum(), k.period), true
}
