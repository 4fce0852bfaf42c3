// SPDX-License-Identifier: Apache-2.0

// Package usage reports the processes on the node's GPUs and their use, to programs that ask and as
// metrics. The package combines data of the driver, the kernel, the ledger and the pods' specs. A
// container may see its own pod; the node's root may see all pods.
package usage

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/agent/selfcheck"
	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/internal/registry"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

const (
	// window is the recent time over which utilisation is measured.
	window = time.Second
	// fresh is the time for which a query's result serves further askers. fresh bounds the rate of
	// queries for any number of askers.
	fresh = 250 * time.Millisecond
	// patience is the time for which a query waits for the driver.
	patience = 3 * time.Second
)

// GPUs are the node's GPUs.
type GPUs interface {
	GPUs() []gpu.GPU
	LeftOut() []gpu.GPU
	Activity(ctx context.Context, window time.Duration) (map[string][]gpu.Activity, error)
}

// Containers are our running containers.
type Containers interface {
	// Holders returns the allocation of each container, by the runtime's id.
	Holders() map[string]placement.Allocation
}

// Ledger holds the free capacity and the allocations of each GPU.
type Ledger interface {
	Free() []placement.Room
	Allocations() []placement.Allocation
}

// Pods are the node's pods.
type Pods interface {
	Cached(pods.Ref) (*corev1.Pod, bool)
}

// Options configures a Collector.
type Options struct {
	// Node is the name of the agent's node.
	Node string
	// Pool is the Node's pool, or "".
	Pool string
	// Foreign, if set, returns the number of containers of other device plugins, by resource.
	Foreign    func() map[string]int
	Config     config.Config
	GPUs       GPUs
	Containers Containers
	Ledger     Ledger
	Pods       Pods
	// Dir returns the directory of a container's files.
	Dir  func(podUID, container string) (string, error)
	Proc registry.Proc
	// Meter, if set, compares a container's charge with the driver's observations.
	Meter func(selfcheck.Place) (selfcheck.Verdict, bool)
}

// Collector answers questions. Collector is safe for concurrent use.
type Collector struct {
	Options

	mu       sync.Mutex
	current  *look
	commands commands
}

// New returns a Collector that has not queried the driver yet.
func New(opts Options) *Collector {
	return &Collector{Options: opts, commands: commands{read: opts.Proc.Command, known: map[identity]*command{}}}
}

// Answer returns the data that the asker may see.
func (c *Collector) Answer(ctx context.Context, who registry.Asker, question agentapi.Question) (any, error) {
	switch question {
	case agentapi.Ping:
		return agentapi.Pong{Node: c.Node, Version: version.Version}, nil
	case agentapi.Processes:
		return c.processes(ctx, who)
	case agentapi.Devices:
		return c.devices(ctx, who)
	case agentapi.All:
		return c.overview(ctx, who), nil
	default:
		return nil, agentapi.ErrQuestion
	}
}

// look is the result of one query of the driver.
type look struct {
	done chan struct{} // closed when the other fields are set
	at   time.Time

	err     error
	holders map[string]placement.Allocation // by the runtime's id
	// sightings are the processes by GPU.
	sightings map[string][]sighting
}

// sighting is a process that uses a GPU.
type sighting struct {
	registry.Process
	gpu.Activity
	command string
}

// errSlow is returned if the driver does not answer in time.
var errSlow = errors.New("the NVIDIA driver does not answer: look for Xid errors in dmesg")

// look returns the last result if it is fresh, and otherwise queries the driver. Concurrent callers
// share a query.
func (c *Collector) look(ctx context.Context) (*look, error) {
	c.mu.Lock()
	l := c.current
	if l == nil || time.Since(l.at) > fresh && l.isDone() {
		l = &look{done: make(chan struct{}), at: time.Now()}
		c.current = l
		go c.find(l) //nolint:contextcheck,gosec // serves all askers, and outlives the first
	}
	c.mu.Unlock()
	select {
	case <-l.done:
		return l, l.err
	case <-time.After(patience):
		return nil, errSlow
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *look) isDone() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

func (c *Collector) find(l *look) {
	defer close(l.done)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	active, err := c.GPUs.Activity(ctx, window)
	if err != nil {
		l.err = err
		return
	}
	l.holders = c.Containers.Holders()
	l.sightings = make(map[string][]sighting, len(active))
	seen := map[int]registry.Process{}
	for uuid, list := range active {
		l.sightings[uuid] = nil // the GPU answered
		for _, a := range list {
			process, ok := seen[a.PID]
			if !ok {
				if process, err = c.Proc.Look(a.PID); err != nil {
					continue // the process has ended
				}
				seen[a.PID] = process
			}
			l.sightings[uuid] = append(l.sightings[uuid], sighting{process, a, ""})
		}
	}
	lines := c.commands.of(seen)
	for _, list := range l.sightings {
		for i := range list {
			list[i].command = lines[list[i].PID]
		}
	}
}
