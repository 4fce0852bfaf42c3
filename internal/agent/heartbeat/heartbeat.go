// SPDX-License-Identifier: Apache-2.0

// Package heartbeat keeps the records of the node's GPUs up to date: the ledger, the CDI spec and
// node.json. The package reports the agent's health.
package heartbeat

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

// Interval is the time between two inspections of the GPUs, and between two reports. The patcher
// withdraws the node's capacity after some missing heartbeats.
const Interval = 5 * time.Second

// recountRest is the least pause after a count, as a multiple of the count's duration. recountRest
// limits the counts that pods cause to a tenth of a processor's time.
const recountRest = 9

// Inventory are the node's GPUs.
type Inventory interface {
	Refresh(context.Context) ([]gpu.GPU, error)
	GPUs() []gpu.GPU
	// LeftOut returns the GPUs that the node does not offer.
	LeftOut() []gpu.GPU
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
	// Unadjusted returns the number of containers that run without their limits.
	Unadjusted() int
}

// Events records Events about the node.
type Events interface {
	// OnNode must not block.
	OnNode(reason events.Reason, format string, args ...any)
}

// Options configures a Heartbeat.
type Options struct {
	// Node is the name of the agent's node.
	Node string
	// Pool is the Node's pool, or "".
	Pool      string
	Config    config.Config
	Inventory Inventory
	Ledger    *placement.Ledger
	Pods      Pods
	Plugin    Plugin
	// Prepare, if set, receives the GPUs before the agent places containers on them. Prepare may
	// take some seconds for a new GPU.
	Prepare func(context.Context, []gpu.GPU)
	// Changed receives the GPUs whenever they may have changed.
	Changed func([]gpu.GPU) error
	Events  Events
	// Full publishes the shapes of pods that have no room on the node, for the mode fit.
	Full func(ctx context.Context, shapes []string) error
	// Volcano, if set, returns the progress of the answers to Volcano's scheduler.
	Volcano func() nodereport.Volcano
	Log     *slog.Logger
}

// Heartbeat keeps the records of the node's GPUs up to date.
type Heartbeat struct {
	Options
	poke loop.Wakeup
	// podsChanged requests a count of the free capacity.
	podsChanged loop.Wakeup
	// reported contains the sums of the last report, for reportedGPUs.
	reported     *nodereport.Sums
	reportedGPUs []gpu.GPU
	// read is the use of each pod that existed at the last count.
	read map[*corev1.Pod]usage
	// bound is the request of each pod that had no GPUs at the last count.
	bound map[*corev1.Pod]binding
	// foreign is the number of containers that request each resource of another device plugin.
	foreign atomic.Pointer[map[string]int]
	// beat is the end of the last round, by the monotonic clock: the wall clock may jump.
	beat atomic.Pointer[time.Time]
	// failure is the state of the driver.
	failure loop.Failure
	// unpublished is the state of publishFull.
	unpublished loop.Failure
	// health is the last reported reason of each GPU, by UUID: "" means healthy.
	health map[string]string
	// undivided are the GPUs in MIG mode without MIG devices at the last round, by UUID.
	undivided map[string]bool
	// begun is the start of this agent. registered reports whether the runtime has ever had the
	// agent's plugin.
	begun      time.Time
	registered bool
}

// registerGrace is the time that a starting agent may take to register its plugin before it reports
// itself as not registered. Registering takes a fraction of a second.
const registerGrace = 10 * time.Second

// New returns a Heartbeat that does nothing until Run.
func New(opts Options) *Heartbeat {
	return &Heartbeat{
		Options: opts, poke: loop.NewWakeup(), podsChanged: loop.NewWakeup(), health: map[string]string{},
		begun: time.Now(),
	}
}

// Poke requests an immediate round. Poke never blocks.
func (h *Heartbeat) Poke() { h.poke.Signal() }

// PodsChanged requests a count of the free capacity. PodsChanged never blocks.
func (h *Heartbeat) PodsChanged() { h.podsChanged.Signal() }

// reportGuard logs that the runtime has not loaded the guard yet, and writes an Event.
func (h *Heartbeat) reportGuard() {
	if h.Config.Guard.PluginDir == "" {
		return
	}
	if _, loaded, err := guardfile.Loaded(h.Config.Paths.RunDir); err != nil || !loaded {
		h.Log.Warn("found that the container runtime has not loaded the guard: restart the runtime once; until then, containers created while the agent is down may see GPUs", "error", err)
		h.Events.OnNode(events.VGPUGuardNotLoaded, "the container runtime has not loaded nri-vgpu's guard: restart it once (systemctl restart containerd; running containers continue). Until then, containers created while the agent is down may see GPUs")
	}
}

// Run inspects the GPUs and writes the report, at once and then at every Interval and Poke, until
// ctx ends. After changes of pods alone, Run writes the report only if the change is urgent.
func (h *Heartbeat) Run(ctx context.Context) {
	ticker := time.NewTicker(Interval)
	defer ticker.Stop()
	h.reportGuard()
	h.round(ctx)
	var recount <-chan time.Time
	// changed is the first change since the last report, and rested is the end of the pause after the
	// last count.
	var changed, rested time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			h.round(ctx)
		case <-h.poke:
			h.round(ctx)
		case <-h.podsChanged:
			if recount == nil {
				changed = time.Now()
				recount = time.After(rested.Sub(changed))
			}
		case <-recount:
			recount = nil
			begin := time.Now()
			counted, wait := h.recount(ctx, begin.Sub(changed))
			rested = begin.Add(counted + max(nodereport.Pause, recountRest*counted))
			if wait > 0 {
				recount = time.After(max(wait, recountRest*counted))
			}
		}
	}
}

// recount rewrites the report if the Node's update is urgent. since is the time since the first change.
// recount returns the duration of the count, without the time in which the report waits for the API
// server and the disk. If wait is positive, the caller must count again after this time.
//
// A report with fewer turns waits. At the end of a pod, the scheduler has a second free turn until the
// Node's update, and may bind two pods. If the agent does not know both pods yet, the Node would
// offer fewer turns than its pods have. kubelet would then reject a pod.
func (h *Heartbeat) recount(ctx context.Context, since time.Duration) (counted, wait time.Duration) {
	begin := time.Now()
	now := h.sums(h.reportedGPUs)
	counted = time.Since(begin)
	switch {
	case !urgent(h.reported, now):
	case lowersTurns(h.reported, now) && since < nodereport.Pause:
		return counted, nodereport.Pause - since
	default:
		h.report(ctx, h.reportedGPUs, now)
	}
	return counted, 0
}

func (h *Heartbeat) round(ctx context.Context) {
	gpus, err := h.Inventory.Refresh(ctx)
	if ctx.Err() != nil {
		return
	}
	h.logDriver(err)
	if h.Prepare != nil {
		h.Prepare(ctx, gpus)
	}
	h.Ledger.SetGPUs(gpus)
	h.reportHealth(gpus)
	h.logUndivided(h.Inventory.LeftOut())
	if err := h.Changed(gpus); err != nil {
		h.Log.Error("failed to write the CDI spec of the node's GPUs", "error", err)
	}
	h.report(ctx, gpus, h.sums(gpus))
	now := time.Now()
	h.beat.Store(&now)
}

// logDriver logs changes of the driver's state.
func (h *Heartbeat) logDriver(err error) {
	switch h.failure.Note(err) {
	case loop.Recovered:
		h.Log.Info("reached the NVIDIA driver again")
	case loop.Failed:
		h.Log.Error("failed to reach the NVIDIA driver; offering no GPUs", "error", err)
	case loop.Unchanged:
	}
}

// reportHealth writes an Event for each GPU that has become unhealthy, changed its reason or
// recovered.
func (h *Heartbeat) reportHealth(gpus []gpu.GPU) {
	for _, g := range gpus {
		before, now := h.health[g.UUID], ""
		if !g.Healthy {
			now = g.Reason
		}
		if before == now {
			continue
		}
		h.health[g.UUID] = now
		if now == "" {
			h.Log.Info("marked a GPU healthy", "gpu", g.UUID, "index", g.Number())
			h.Events.OnNode(events.GPURecovered, "GPU %s (%s) is healthy and accepts containers again", g.Number(), g.UUID)
			continue
		}
		h.Log.Error("marked a GPU unhealthy; placing no new containers on it", "gpu", g.UUID, "index", g.Number(), "reason", now)
		h.Events.OnNode(events.GPUUnhealthy, "GPU %s (%s) is unhealthy and gets no new containers: %s", g.Number(), g.UUID, now)
	}
}

// logUndivided logs each GPU that is newly in MIG mode without MIG devices.
func (h *Heartbeat) logUndivided(leftOut []gpu.GPU) {
	now := map[string]bool{}
	for _, g := range leftOut {
		if !g.Undivided {
			continue
		}
		now[g.UUID] = true
		if !h.undivided[g.UUID] {
			h.Log.Warn("found a GPU without anything to offer", "gpu", g.UUID, "index", g.Index, "reason", g.Reason)
		}
	}
	h.undivided = now
}

// leavesReport reports whether the previous agent's report must stay. The report must stay while
// this agent starts and is not registered yet, if the previous agent was registered. A restart thus
// withdraws no capacity. The heartbeat in the old report does not advance, so the patcher treats
// the report as stale, like the report of a dead agent.
func (h *Heartbeat) leavesReport(path string) bool {
	h.registered = h.registered || h.Plugin.Registered()
	if h.registered || time.Since(h.begun) > registerGrace {
		return false
	}
	before, err := nodereport.Read(path)
	return err == nil && before.PluginRegistered
}

// publishFull publishes the shapes of pods that have no room, before the Node offers the next turn.
// If publishFull fails, the Node must not offer a turn.
func (h *Heartbeat) publishFull(ctx context.Context, sums *nodereport.Sums) {
	if sums == nil || sums.Fit == nil {
		return
	}
	err := h.Full(ctx, sums.Fit.Full)
	sums.Fit.Closed = sums.Fit.Closed || err != nil
	switch h.unpublished.Note(err) {
	case loop.Recovered:
		h.Log.Info("published the shapes of pods without room again")
	case loop.Failed:
		h.Log.Error("failed to publish the shapes of pods without room; the Node accepts no pods with GPUs", "error", err)
	case loop.Unchanged:
	}
}

// report writes node.json, unless ctx has ended.
func (h *Heartbeat) report(ctx context.Context, gpus []gpu.GPU, sums *nodereport.Sums) {
	h.publishFull(ctx, sums)
	h.reported, h.reportedGPUs = sums, gpus
	path := filepath.Join(h.Config.Paths.RunDir, nodereport.FileName)
	if h.leavesReport(path) {
		return
	}
	var volcano nodereport.Volcano
	if h.Volcano != nil {
		volcano = h.Volcano()
	}
	registered := h.Plugin.Registered()
	// An agent that ends deregisters its plugin after ctx has ended. A report without the plugin
	// would withdraw capacity at each restart.
	if ctx.Err() != nil {
		return
	}
	err := nodereport.Write(path, nodereport.Report{
		Volcano:          volcano,
		Heartbeat:        time.Now().UTC(),
		PluginRegistered: registered,
		Unadjusted:       h.Plugin.Unadjusted(),
		AgentVersion:     version.Version,
		Pool:             h.Pool,
		GPUs:             gpus,
		LeftOut:          h.Inventory.LeftOut(),
		Sums:             sums,
	})
	if err != nil {
		h.Log.Error("failed to write the node's report; the patcher will withdraw the node's capacity", "error", err)
	}
}
