// Package agent keeps what the node's other parts know of its GPUs up to date:
// the ledger, the CDI spec, node.json; and tells of the agent's health.
package agent

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/events"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/guard"
	"github.com/nri-vgpu/nri-vgpu/pkg/nodereport"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/version"
)

// Interval is how often GPUs are looked at and the heartbeat is written. The
// patcher withdraws the node's capacity when some of them are missing.
const Interval = 5 * time.Second

const (
	// recountPause gathers changes of pods that come together.
	recountPause = 100 * time.Millisecond
	// recountRest is how many times as long as a count takes the next one waits: a
	// tenth of a processor's time is what pods can make the agent count.
	recountRest = 9
)

// Inventory are the node's GPUs.
type Inventory interface {
	Refresh(context.Context) ([]gpu.GPU, error)
	GPUs() []gpu.GPU
	XIDs() map[gpu.XID]uint64
}

// Pods are the node's pods.
type Pods interface {
	List() []*corev1.Pod
	HasSynced() bool
}

// Plugin is the connection to the container runtime.
type Plugin interface {
	Registered() bool
	Stuck() time.Duration
	// Unadjusted is how many containers run without their limits.
	Unadjusted() int
}

// Events tell people what became of the node.
type Events interface {
	// OnNode must not block.
	OnNode(reason events.Reason, format string, args ...any)
}

// Options of an Agent.
type Options struct {
	// Node is the own node's name.
	Node      string
	Config    config.Config
	Inventory Inventory
	Ledger    *placement.Ledger
	Pods      Pods
	Plugin    Plugin
	// Prepare, where set, is told the GPUs before containers are placed on them. It
	// may take some seconds of a GPU that is new.
	Prepare func(context.Context, []gpu.GPU)
	// Changed is told the GPUs whenever they may be others than before.
	Changed func([]gpu.GPU) error
	Events  Events
	// Volcano, where set, is how far Volcano's scheduler has been answered.
	Volcano func() nodereport.Volcano
	Log     *slog.Logger
}

// Agent keeps the node's picture up to date.
type Agent struct {
	Options
	poke chan struct{}
	// podsChanged asks for a count of what is left.
	podsChanged chan struct{}
	// told is what the last report said, of which GPUs.
	told     *nodereport.Sums
	toldGPUs []gpu.GPU
	// read is what each pod uses that was there at the last count.
	read map[*corev1.Pod]usage
	// beat is when the last round ended, in Unix nanoseconds.
	beat atomic.Int64
	// failed is the last error of the driver, to say each only once.
	failed string
	// health is what was last said of each GPU, by UUID: "" is healthy.
	health map[string]string
	// begun is when this agent was made; registered: the runtime had its plugin once.
	begun      time.Time
	registered bool
}

// registerGrace is how long an agent that begins may take to register its plugin before it
// reports that it is not. Registering takes a fraction of a second.
const registerGrace = 10 * time.Second

// New returns an agent that does nothing until Run.
func New(opts Options) *Agent {
	return &Agent{
		Options: opts, poke: make(chan struct{}, 1), podsChanged: make(chan struct{}, 1), health: map[string]string{},
		begun: time.Now(),
	}
}

// Poke asks for a round now. It never blocks.
func (a *Agent) Poke() {
	select {
	case a.poke <- struct{}{}:
	default:
	}
}

// PodsChanged asks for a count of what is left of the GPUs. It never blocks.
func (a *Agent) PodsChanged() {
	select {
	case a.podsChanged <- struct{}{}:
	default:
	}
}

// tellGuard says once that the runtime has yet to load the guard.
func (a *Agent) tellGuard() {
	if a.Config.Guard.PluginDir == "" {
		return
	}
	if _, loaded, err := guard.Loaded(a.Config.Paths.RunDir); err != nil || !loaded {
		a.Log.Warn("the container runtime has not loaded nri-vgpu's guard: until it is restarted once, containers that are created while this agent is away may see GPUs", "error", err)
		a.Events.OnNode(events.VGPUGuardNotLoaded, "the container runtime has not loaded nri-vgpu's guard: until it is restarted once (systemctl restart containerd; running containers go on), containers that are created while the agent is away may see GPUs")
	}
}

// Run looks at the GPUs and writes the report, at once and then at every
// Interval and Poke, until ctx ends. Changes of pods alone are told at once
// where they cannot wait.
func (a *Agent) Run(ctx context.Context) {
	ticker := time.NewTicker(Interval)
	defer ticker.Stop()
	a.tellGuard()
	a.round(ctx)
	var recount <-chan time.Time
	var rest time.Duration
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			a.round(ctx)
		case <-a.poke:
			a.round(ctx)
		case <-a.podsChanged:
			if recount == nil {
				recount = time.After(max(recountPause, rest))
			}
		case <-recount:
			recount = nil
			begin := time.Now()
			a.recount()
			rest = recountRest * time.Since(begin)
		}
	}
}

// recount writes the report anew if the Node must not wait for it.
func (a *Agent) recount() {
	if now := a.sums(a.toldGPUs); urgent(a.told, now) {
		a.report(a.toldGPUs, now)
	}
}

func (a *Agent) round(ctx context.Context) {
	gpus, err := a.Inventory.Refresh(ctx)
	if ctx.Err() != nil {
		return
	}
	a.tell(err)
	if a.Prepare != nil {
		a.Prepare(ctx, gpus)
	}
	a.Ledger.SetGPUs(gpus)
	a.tellHealth(gpus)
	if err := a.Changed(gpus); err != nil {
		a.Log.Error("the node's GPUs could not be made known to the runtime", "error", err)
	}
	a.report(gpus, a.sums(gpus))
	a.beat.Store(time.Now().UnixNano())
}

// tell logs what the driver says when that changes.
func (a *Agent) tell(err error) {
	switch {
	case err == nil && a.failed != "":
		a.Log.Info("the NVIDIA driver answers again")
		a.failed = ""
	case err != nil && err.Error() != a.failed:
		a.Log.Error("the node's GPUs cannot be used", "error", err)
		a.failed = err.Error()
	}
}

// tellHealth writes an Event for each GPU that is unhealthy, or for another
// reason than before, and for each that has recovered.
func (a *Agent) tellHealth(gpus []gpu.GPU) {
	for _, g := range gpus {
		before, now := a.health[g.UUID], ""
		if !g.Healthy {
			now = g.Reason
		}
		if before == now {
			continue
		}
		a.health[g.UUID] = now
		if now == "" {
			a.Log.Info("a GPU takes containers again", "gpu", g.UUID, "index", g.Index)
			a.Events.OnNode(events.GPURecovered, "GPU %d (%s) takes containers again", g.Index, g.UUID)
			continue
		}
		a.Log.Error("a GPU takes no containers", "gpu", g.UUID, "index", g.Index, "reason", now)
		a.Events.OnNode(events.GPUUnhealthy, "GPU %d (%s) takes no containers: %s", g.Index, g.UUID, now)
	}
}

// leavesReport reports whether the report of the agent before this one is to stand: that agent
// was registered, and this one has just begun and is not yet. So an agent's restart withdraws
// nothing. The heartbeat stands still, so the patcher trusts such a report no longer than a dead
// agent's.
func (a *Agent) leavesReport(path string) bool {
	a.registered = a.registered || a.Plugin.Registered()
	if a.registered || time.Since(a.begun) > registerGrace {
		return false
	}
	before, err := nodereport.Read(path)
	return err == nil && before.PluginRegistered
}

// report writes node.json.
func (a *Agent) report(gpus []gpu.GPU, sums *nodereport.Sums) {
	a.told, a.toldGPUs = sums, gpus
	path := filepath.Join(a.Config.Paths.RunDir, nodereport.FileName)
	if a.leavesReport(path) {
		return
	}
	var volcano nodereport.Volcano
	if a.Volcano != nil {
		volcano = a.Volcano()
	}
	err := nodereport.Write(path, nodereport.Report{
		Volcano:          volcano,
		Heartbeat:        time.Now().UTC(),
		PluginRegistered: a.Plugin.Registered(),
		Unadjusted:       a.Plugin.Unadjusted(),
		AgentVersion:     version.Version,
		GPUs:             gpus,
		Sums:             sums,
	})
	if err != nil {
		a.Log.Error("the node's report could not be written: the patcher will withdraw the node's capacity", "error", err)
	}
}
