package hook

import (
	"context"
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"time"

	kubeevents "github.com/nri-vgpu/nri-vgpu/pkg/events"
	"github.com/nri-vgpu/nri-vgpu/pkg/injected"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/pods"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// Lifecycle of what a container holds:
//
//	CreateContainer  places the pod, writes its files, and notes that the
//	                 container lives.
//	StopContainer,   end that; the runtime sends one of them also for a
//	RemoveContainer  container that exits by itself or was never started.
//	Stop/RemovePodSandbox  end it for all containers of the sandbox.
//	Synchronize      tells, after every reconnect, which containers live; one
//	                 that was not started does from its StartContainer on, or
//	                 PostStartContainer where that was missed.
//
// A pod's share is freed when the API server no longer has the pod, or has it
// as ended, and none of its containers lives: a restarting container keeps
// its GPU, and a pod that was deleted by force holds its own until it is gone.
// That is looked at with each event and, as events get lost, every sweep; a
// sweep also finds containers whose end the runtime did not tell, by their
// first process.

// SweepInterval is how often Sweep runs.
const SweepInterval = 2 * time.Second

// stopped notes that a container no longer lives.
func (h *Hook) stopped(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.unadjusted, id)
	h.unaudited = slices.DeleteFunc(h.unaudited, func(c runningContainer) bool { return c.id == id })
	h.countUnadjusted()
	c, ok := h.live[id]
	if !ok {
		return
	}
	delete(h.live, id)
	h.liveChanged()
	h.releaseIfGone(c.podUID)
}

// sandboxStopped notes that a sandbox and all that ran in it are gone.
func (h *Hook) sandboxStopped(sandbox, podUID string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, c := range h.live {
		if c.sandbox == sandbox {
			delete(h.live, id)
		}
	}
	maps.DeleteFunc(h.unadjusted, func(_ string, c liveContainer) bool { return c.sandbox == sandbox })
	h.unaudited = slices.DeleteFunc(h.unaudited, func(c runningContainer) bool { return c.sandbox == sandbox })
	h.countUnadjusted()
	h.liveChanged()
	h.releaseIfGone(podUID)
}

// PodGone looks at a pod that the API server no longer has, or has as ended.
func (h *Hook) PodGone(podUID string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.releaseIfGone(podUID)
}

// Sweep frees what pods hold whose end was missed, and audits containers that
// could not be looked at before.
func (h *Hook) Sweep() {
	if !h.Pods.HasSynced() {
		return
	}
	h.compare()
	h.bury(time.Now())
	h.mu.Lock()
	h.audit()
	h.mu.Unlock()
	holders := map[string]bool{}
	for _, uid := range h.Ledger.Holders() {
		holders[uid] = true
	}
	// Files may be left of a pod that was freed when they could not be
	// removed, or whose assignment was put aside. Without h.mu this may take its time.
	left, err := h.Store.Pods()
	if err != nil {
		h.Log.Error("the containers' files cannot be listed", "error", err)
		return
	}
	for _, uid := range left {
		holders[uid] = true
	}
	for uid := range holders {
		h.PodGone(uid) // each by itself, as containers wait meanwhile
	}
}

// unstarted is how long a container may take from its creation to its start, if
// its pod has gone: longer than runtimes take for both.
const unstarted = 5 * time.Minute

// bury forgets containers that have ended without the runtime's telling: a
// restarted one may not, of those from before.
func (h *Hook) bury(now time.Time) {
	h.mu.Lock()
	live, unadjusted := maps.Clone(h.live), maps.Clone(h.unadjusted)
	h.mu.Unlock()
	// Processes are looked at while containers are created.
	maps.DeleteFunc(live, func(_ string, c liveContainer) bool {
		failed := c.process.pid == 0 && !c.created.IsZero() && now.Sub(c.created) > unstarted && !h.Pods.Alive(c.podUID)
		return !failed && !c.process.ended(h.Proc)
	})
	maps.DeleteFunc(unadjusted, func(_ string, c liveContainer) bool { return !c.process.ended(h.Proc) })
	if len(live)+len(unadjusted) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.live, func(id string, c liveContainer) bool {
		ended, ok := live[id]
		ok = ok && ended.process == c.process
		if ok {
			h.Log.Info("a container has ended, which the runtime did not tell", "pod_uid", c.podUID, "container", c.name)
		}
		return ok
	})
	maps.DeleteFunc(h.unadjusted, func(id string, c liveContainer) bool {
		ended, ok := unadjusted[id]
		return ok && ended.process == c.process
	})
	h.countUnadjusted()
	if len(live) > 0 {
		h.liveChanged()
	}
}

// compare says, once, where pods hold what their specs do not ask for: the
// configuration was changed, or the state directory. They keep it, as what runs
// has it.
func (h *Hook) compare() {
	h.mu.Lock()
	compares := h.synchronized && !h.compared
	h.compared = h.compared || compares
	h.mu.Unlock()
	if !compares {
		return
	}
	for _, uid := range h.Ledger.Holders() {
		pod, ok := h.Pods.Cached(pods.Ref{UID: uid})
		if !ok {
			continue
		}
		asked, err := request.FromPod(pod, h.Config.Dialects)
		for _, a := range h.Ledger.Pod(uid) {
			if err == nil && asks(asked, a.Container) {
				continue
			}
			h.Metrics.unexplained.Inc()
			h.Log.Warn("a container holds a part of a GPU that its pod's spec does not ask for: delete the pod to free it",
				"namespace", pod.Namespace, "pod", pod.Name, "container", a.Container, "error", err)
		}
	}
}

// Run sweeps until ctx ends.
func (h *Hook) Run(ctx context.Context) {
	ticker := time.NewTicker(SweepInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			h.Sweep()
		}
	}
}

// releaseIfGone frees what a pod holds if it has gone. Without the pods known
// nothing is freed, nor before the runtime has told its containers: that
// they are not seen means nothing then. h.mu is held.
func (h *Hook) releaseIfGone(podUID string) {
	if !h.synchronized || !h.Pods.HasSynced() || h.Pods.Alive(podUID) || h.lives(podUID) {
		return
	}
	if !h.Ledger.Holds(podUID) && !h.Store.HasFiles(podUID) {
		return
	}
	if err := h.Store.Remove(podUID); err != nil {
		// The ledger frees nothing that a restarted agent would take again.
		h.Log.Error("a pod's GPUs are not freed yet", "pod_uid", podUID, "error", err)
		return
	}
	h.Ledger.Release(podUID)
	delete(h.reserved, podUID)
	h.Log.Info("freed the GPUs of a pod that is gone", "pod_uid", podUID)
}

// LiveDirs are the directories of the containers with a part of a GPU that may
// have processes.
func (h *Hook) LiveDirs() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var dirs []string
	for _, c := range h.live {
		if dir, err := h.Store.Dir(c.podUID, c.name); err == nil {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

func (h *Hook) liveChanged() {
	if h.LiveChanged != nil {
		h.LiveChanged()
	}
}

func (h *Hook) lives(podUID string) bool {
	for _, c := range h.live {
		if c.podUID == podUID {
			return true
		}
	}
	return false
}

// started notes the first process of a container of ours that is about to live,
// or does; it tells whether it was not known.
func (h *Hook) started(ctx context.Context, c Container, id, sandbox string) bool {
	if !h.carriesOurs(c) {
		return false
	}
	process := findProcess(h.Proc, c.PID)
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return false // its start was refused meanwhile
	}
	live, known := h.live[id]
	if !known {
		live = liveContainer{podUID: c.PodUID, name: c.Name, sandbox: sandbox, created: time.Now()}
	}
	live.process, live.ours = process, injected.Ours(c.Mounts)
	h.live[id] = live
	if !known {
		h.liveChanged()
	}
	return !known
}

// runningContainer is a container that the runtime has when we register.
type runningContainer struct {
	Container
	id, sandbox string
	// created: it has not been started, and may never be: where kubelet died
	// before, nobody removes it for minutes, even though its pod is gone.
	created bool
}

// synchronize takes over the containers that the runtime has: the state of
// the last agent, or of this one before the connection was lost.
func (h *Hook) synchronize(ctx context.Context, containers []runningContainer) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err() // the runtime tells them anew
	}
	clear(h.live)
	h.unaudited = nil
	h.unadjusted = map[string]liveContainer{}
	h.countUnadjusted()
	h.synchronized = true
	for _, c := range containers {
		if !h.carriesOurs(c.Container) {
			h.unaudited = append(h.unaudited, c)
			continue
		}
		if !c.created {
			h.live[c.id] = liveContainer{podUID: c.PodUID, name: c.Name, sandbox: c.sandbox, process: findProcess(h.Proc, c.PID), ours: injected.Ours(c.Mounts)}
		}
		h.adopt(c.Container)
	}
	h.liveChanged()
	if h.Pods.HasSynced() {
		h.audit()
	}
	return nil
}

// adopt sees to it that the ledger has what a running container was given.
// The container's files say it; where they are lost the annotation does that
// we left with the runtime, which no tenant can write.
func (h *Hook) adopt(c Container) {
	log := h.Log.With("namespace", c.Namespace, "pod", c.Pod, "container", c.Name)
	var given placement.Allocation
	err := json.Unmarshal([]byte(c.Assignment), &given)
	if err != nil || given.PodUID != c.PodUID || given.Container != c.Name {
		log.Error("a running container's assignment cannot be read back from the runtime", "error", err)
		return
	}
	replaced, err := h.Ledger.Adopt(given)
	if err != nil {
		log.Error("a running container's assignment cannot be taken over", "error", err)
		return
	}
	dir, err := h.Store.Dir(c.PodUID, c.Name)
	if err != nil {
		log.Error("a running container's files have no place", "error", err)
		return
	}
	if _, err := readAssignment(filepath.Join(dir, assignmentFile)); err == nil && !replaced {
		return
	}
	if err := h.Store.Rewrite(given); err != nil {
		log.Error("a running container's assignment cannot be written", "error", err)
		return
	}
	h.Metrics.recovered.Inc()
	log.Warn("recovered the assignment of a running container whose files were lost, or said something else", "replaced", replaced)
}

// audit looks at running containers that carry no limits, and reports those
// that ask for a GPU or may see one. h.mu is held.
func (h *Hook) audit() {
	read := readOnce()
	for _, c := range h.unaudited {
		if err := h.checkUnadjusted(c.Container, read); err != nil {
			h.unadjusted[c.id] = liveContainer{podUID: c.PodUID, name: c.Name, sandbox: c.sandbox, process: findProcess(h.Proc, c.PID)}
			h.reportUnadjusted(c.Container, err)
		}
	}
	h.unaudited = nil
	h.countUnadjusted()
}

// countUnadjusted tells how many containers run without their limits. h.mu is
// held.
func (h *Hook) countUnadjusted() {
	h.Metrics.unadjusted.Set(float64(len(h.unadjusted)))
	h.unadjustedCount.Store(int64(len(h.unadjusted)))
}

// Unadjusted gives how many containers run without their limits, as they were
// created without us.
func (h *Hook) Unadjusted() int { return int(h.unadjustedCount.Load()) }

// Unlimited reports whether a container, by the runtime's id, runs without its limits.
func (h *Hook) Unlimited(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, unlimited := h.unadjusted[id]
	return unlimited
}

// reportUnadjusted says, and if so configured ends, that a container runs
// which should not.
func (h *Hook) reportUnadjusted(c Container, why error) {
	log := h.Log.With("namespace", c.Namespace, "pod", c.Pod, "container", c.Name)
	if !h.Config.Guard.StopUnadjusted {
		log.Error("a container runs without adjustment: delete its pod", "error", why)
		h.tell(c, kubeevents.VGPUUnadjusted, "container %q runs without its limits, as it was created while nri-vgpu was away: delete the pod (guard.stop_unadjusted in config.toml would have stopped it)", c.Name)
		return
	}
	if err := c.stop(h.Proc); err != nil {
		log.Error("a container runs without adjustment and cannot be stopped: delete its pod", "error", err)
		h.tell(c, kubeevents.VGPUUnadjusted, "container %q runs without its limits and cannot be stopped (%v): delete the pod", c.Name, err)
		return
	}
	log.Warn("stopped a container that ran without adjustment", "error", why)
	h.tell(c, kubeevents.VGPUStopped, "container %q ran without its limits, as it was created while nri-vgpu was away, and was stopped", c.Name)
}

// carriesOurs tells whether a container has its files mounted, and not
// another's.
func (h *Hook) carriesOurs(c Container) bool {
	dir, carries := injected.Dir(c.Mounts)
	want, err := h.Store.Dir(c.PodUID, c.Name)
	return carries && err == nil && dir == want
}
