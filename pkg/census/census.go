// Package census tells who uses the node's GPUs, and how much: what the driver,
// the kernel, the ledger and the pods' specs say, put together for the one who
// asks. A container is told of its own pod, the node's root of all.
package census

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/pods"
	"github.com/nri-vgpu/nri-vgpu/pkg/query"
	"github.com/nri-vgpu/nri-vgpu/pkg/registry"
	"github.com/nri-vgpu/nri-vgpu/pkg/selfcheck"
	"github.com/nri-vgpu/nri-vgpu/pkg/version"
)

const (
	// window is the time just past over which utilisation is taken.
	window = time.Second
	// fresh is how long what was found is good for the next who asks: so often
	// do they take the driver's time, however many they are.
	fresh = 250 * time.Millisecond
	// patience is how long the driver is waited for.
	patience = 3 * time.Second
)

// GPUs are the node's.
type GPUs interface {
	GPUs() []gpu.GPU
	Activity(ctx context.Context, window time.Duration) (map[string][]gpu.Activity, error)
}

// Containers are those of ours that run.
type Containers interface {
	// Holders returns what each holds, by the runtime's id.
	Holders() map[string]placement.Allocation
}

// Ledger knows what is left of each GPU, and who has the rest.
type Ledger interface {
	Free() []placement.Room
	Allocations() []placement.Allocation
}

// Pods are the node's.
type Pods interface {
	Cached(pods.Ref) (*corev1.Pod, bool)
}

// Options of a Census.
type Options struct {
	// Node is the own node's name.
	Node       string
	Config     config.Config
	GPUs       GPUs
	Containers Containers
	Ledger     Ledger
	Pods       Pods
	// Dir is where the files of a container are.
	Dir  func(podUID, container string) (string, error)
	Proc registry.Proc
	// Meter, where set, compares what a container is charged with what the driver observes.
	Meter func(selfcheck.Place) (selfcheck.Verdict, bool)
}

// Census answers questions. It is safe for concurrent use.
type Census struct {
	Options

	mu       sync.Mutex
	current  *look
	commands commands
}

// New returns a census that has looked at nothing yet.
func New(opts Options) *Census {
	return &Census{Options: opts, commands: commands{read: opts.Proc.Command, known: map[identity]*command{}}}
}

// Answer is what one who asks may know.
func (c *Census) Answer(ctx context.Context, who registry.Asker, question query.Question) (any, error) {
	switch question {
	case query.Ping:
		return query.Pong{Node: c.Node, Version: version.Version}, nil
	case query.Processes:
		return c.processes(ctx, who)
	case query.Devices:
		return c.devices(ctx, who)
	case query.All:
		return c.overview(ctx, who), nil
	default:
		return nil, query.ErrQuestion
	}
}

// look is what was found at one time.
type look struct {
	done chan struct{} // closed when the rest is there
	at   time.Time

	err     error
	holders map[string]placement.Allocation // by the runtime's id
	// sightings are by GPU.
	sightings map[string][]sighting
}

// sighting is a process that uses a GPU.
type sighting struct {
	registry.Process
	gpu.Activity
	command string
}

// errSlow is said while the driver is being waited for.
var errSlow = errors.New("the NVIDIA driver does not answer: look for Xid errors in dmesg")

// look returns what was found lately, or looks. Those who ask meanwhile wait for
// the same.
func (c *Census) look(ctx context.Context) (*look, error) {
	c.mu.Lock()
	l := c.current
	if l == nil || time.Since(l.at) > fresh && l.isDone() {
		l = &look{done: make(chan struct{}), at: time.Now()}
		c.current = l
		go c.find(l)
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

func (c *Census) find(l *look) {
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
		l.sightings[uuid] = nil // it answered
		for _, a := range list {
			process, ok := seen[a.PID]
			if !ok {
				if process, err = c.Proc.Look(a.PID); err != nil {
					continue // it has ended meanwhile
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
