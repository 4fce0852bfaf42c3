// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/container/ourfiles"
	kubeevents "github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/store"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// Lifecycle of a container's allocation:
//
//	CreateContainer  places the pod, writes its files, and records the container
//	                 as live.
//	StopContainer,   record the container's end. The runtime also sends one of these
//	RemoveContainer  events for a container that exits by itself or never started.
//	Stop/RemovePodSandbox  record the end of all containers of the sandbox.
//	Synchronize      lists the live containers after every reconnect. A container
//	                 that was not started counts as live from its StartContainer
//	                 on, or from PostStartContainer if StartContainer was missed.
//	                 A container that is not listed stays live while its first
//	                 process runs.
//
// The hook releases the allocation of a deleted or ended pod once none of its containers is live.
// Therefore a restarting container keeps its GPU, and a force-deleted pod holds its GPU until its
// containers are gone. Each event and each sweep triggers the release, because events may be lost.
// A sweep also checks the first process of each container, to detect ends that the runtime did
// not report.

// SweepInterval is the time between sweeps.
const SweepInterval = 2 * time.Second

// stopped records that a container is no longer live.
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

// sandboxStopped records that a sandbox and all of its containers are gone.
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

// PodGone releases the allocation of a pod that the API server has deleted or reports
// as ended.
func (h *Hook) PodGone(podUID string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.releaseIfGone(podUID)
}

// Sweep releases the allocations of pods whose end the hook missed, and audits the containers that
// the hook could not audit before.
func (h *Hook) Sweep() {
	if !h.opts.Pods.HasSynced() {
		return
	}
	h.compare()
	h.dropUnreported(time.Now())
	h.mu.Lock()
	h.audit()
	h.completeAll()
	h.mu.Unlock()
	// Files of a released pod may remain after a failed removal, or if the store renamed the pod's
	// assignment. The listing may take long, so Sweep does not hold h.mu.
	left, err := h.opts.Store.Pods()
	if err != nil {
		h.opts.Log.Error("failed to list the containers' files", "error", err)
		return
	}
	for _, uid := range append(h.opts.Ledger.Holders(), left...) {
		h.PodGone(uid) // each call takes the lock anew, because handlers wait for the lock
	}
}

// unstarted is the time that a container may take from creation to start after its pod has gone.
// unstarted exceeds the time that runtimes take for creation and start.
const unstarted = 5 * time.Minute

// dropUnreported drops containers whose exit the runtime never reported, as happens after a
// runtime restart.
func (h *Hook) dropUnreported(now time.Time) {
	h.mu.Lock()
	live, unadjusted := maps.Clone(h.live), maps.Clone(h.unadjusted)
	h.mu.Unlock()
	// dropUnreported checks processes without h.mu, so that the check delays no handler.
	maps.DeleteFunc(live, func(_ string, c liveContainer) bool {
		failed := c.process.pid == 0 && !c.created.IsZero() && now.Sub(c.created) > unstarted && !h.opts.Pods.Alive(c.podUID)
		return !failed && !c.process.ended(h.opts.Proc)
	})
	maps.DeleteFunc(unadjusted, func(_ string, c liveContainer) bool { return !c.process.ended(h.opts.Proc) })
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.live, func(id string, c liveContainer) bool {
		ended, ok := live[id]
		ok = ok && ended.process == c.process
		if ok {
			h.opts.Log.Info("dropped a container whose exit the runtime did not report", "uid", c.podUID, "container", c.name)
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

// compare reports once which pods hold allocations that their specs do not request. A changed
// configuration or state directory can cause allocations without a request. The pods keep their
// allocations, since running containers use the allocations.
func (h *Hook) compare() {
	h.mu.Lock()
	compares := h.synchronized && !h.compared
	h.compared = h.compared || compares
	h.mu.Unlock()
	if !compares {
		return
	}
	for _, uid := range h.opts.Ledger.Holders() {
		pod, ok := h.opts.Pods.Cached(pods.Ref{UID: uid})
		if !ok {
			continue
		}
		asked, err := request.FromPod(pod, h.opts.Config.Dialects)
		for _, a := range h.opts.Ledger.Pod(uid) {
			if err == nil && asked.Asks(a.Container) {
				continue
			}
			h.opts.Metrics.unexplained.Inc()
			h.opts.Log.Warn("found a container that holds a part of a GPU without a request in its pod's spec: delete the pod to free the part",
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

// releaseIfGone releases a pod's allocation if the pod is gone. releaseIfGone releases nothing
// until the pods are synced and the runtime has listed its containers. Before the listing, the
// absence of a container proves nothing. The caller holds h.mu.
func (h *Hook) releaseIfGone(podUID string) {
	if !h.synchronized || !h.opts.Pods.HasSynced() || h.opts.Pods.Alive(podUID) || h.podLives(podUID) {
		return
	}
	if !h.opts.Ledger.Holds(podUID) && !h.opts.Store.HasFiles(podUID) {
		return
	}
	if err := h.opts.Store.Remove(podUID); err != nil {
		// The ledger keeps the allocation, since a restarted agent would load the allocation again.
		h.opts.Log.Error("failed to free a pod's GPUs; retrying", "uid", podUID, "error", err)
		return
	}
	h.opts.Ledger.Release(podUID)
	delete(h.reserved, podUID)
	h.opts.Log.Info("freed the GPUs of a pod that is gone", "uid", podUID)
	if h.opts.Released != nil {
		h.opts.Released()
	}
}

// LiveDirs returns the directories of the containers with a part of a GPU that may
// have processes.
func (h *Hook) LiveDirs() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var dirs []string
	for _, c := range h.live {
		if dir, err := h.opts.Store.Dir(c.podUID, c.name); err == nil {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

func (h *Hook) liveChanged() {
	if h.opts.LiveChanged != nil {
		h.opts.LiveChanged()
	}
}

func (h *Hook) podLives(podUID string) bool {
	for _, c := range h.live {
		if c.podUID == podUID {
			return true
		}
	}
	return false
}

// started records the first process of a container with nri-vgpu mounts that is
// starting or running. started reports whether the container was new.
func (h *Hook) started(ctx context.Context, c adjust.Container, id, sandbox string) bool {
	if !h.carriesOurs(c) {
		return false
	}
	process := findProcess(h.opts.Proc, c.PID)
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return false // within has refused the container's start meanwhile
	}
	live, known := h.live[id]
	if !known {
		live = liveContainer{podUID: c.PodUID, name: c.Name, sandbox: sandbox, created: time.Now()}
	}
	live.process, live.ours = process, ourfiles.Ours(c.Mounts)
	h.live[id] = live
	if !known {
		h.liveChanged()
	}
	return !known
}

// runningContainer is a container that the runtime lists at registration.
type runningContainer struct {
	adjust.Container
	id, sandbox string
	// created reports whether the runtime has created the container but not started it. If kubelet
	// dies before the start, the container remains for minutes, even if its pod is gone.
	created bool
}

// synchronize takes over the runtime's containers, after a restart of the agent or a
// lost connection.
func (h *Hook) synchronize(ctx context.Context, containers []runningContainer) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err() // the runtime lists the containers again
	}
	// containerd does not list a container whose state it failed to load after a restart.
	maps.DeleteFunc(h.live, func(_ string, c liveContainer) bool { return c.process.pid == 0 || c.process.ended(h.opts.Proc) })
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
			h.live[c.id] = liveContainer{podUID: c.PodUID, name: c.Name, sandbox: c.sandbox, process: findProcess(h.opts.Proc, c.PID), ours: ourfiles.Ours(c.Mounts)}
		}
		h.adopt(c.Container)
	}
	h.liveChanged()
	if h.opts.Pods.HasSynced() {
		h.audit()
	}
	return nil
}

// adopt ensures that the ledger has the allocation of a running container. The
// annotation in the runtime's OCI spec, which no tenant can write, overrides restored
// state. adopt rewrites the container's file if the file is lost or differs, and keeps the file of a
// newer release.
func (h *Hook) adopt(c adjust.Container) {
	log := h.opts.Log.With("namespace", c.Namespace, "pod", c.Pod, "container", c.Name)
	var given placement.Allocation
	err := json.Unmarshal([]byte(c.Assignment), &given)
	if err != nil || given.PodUID != c.PodUID || given.Container != c.Name {
		log.Error("failed to read a running container's assignment back from the runtime", "error", err)
		return
	}
	replaced, err := h.opts.Ledger.Adopt(h.sizesOnPage(given))
	if err != nil {
		log.Error("failed to adopt a running container's assignment", "error", err)
		return
	}
	if _, err := h.opts.Store.Dir(c.PodUID, c.Name); err != nil {
		log.Error("failed to create the directory of a running container's files", "error", err)
		return
	}
	held, ok := h.opts.Ledger.Get(c.PodUID, c.Name)
	if !ok {
		held = given // a container without GPUs
	}
	if _, err := h.opts.Store.Assignment(c.PodUID, c.Name); err != nil && !errors.Is(err, store.ErrVersion) || replaced {
		if err := h.opts.Store.Rewrite(held); err != nil {
			log.Error("failed to write a running container's assignment", "error", err)
			return
		}
		h.opts.Metrics.recovered.Inc()
		log.Warn("recovered the assignment of a running container whose files were lost or differed", "replaced", replaced)
	}
	if held.Resized {
		// The previous agent may have been killed while it resized the container.
		if err := h.complete(held); err != nil {
			h.incomplete[containerName{c.PodUID, c.Name}] = true
			log.Error("failed to write the limits of a resized container; retrying", "error", err)
		}
	}
}

// audit checks running containers without limits, and reports containers that request a GPU or may
// see a GPU. The caller holds h.mu.
func (h *Hook) audit() {
	read := readOnce()
	for _, c := range h.unaudited {
		if err := h.checkUnadjusted(c.Container, read); err != nil {
			h.unadjusted[c.id] = liveContainer{podUID: c.PodUID, name: c.Name, sandbox: c.sandbox, process: findProcess(h.opts.Proc, c.PID)}
			h.reportUnadjusted(c.Container, err)
		}
	}
	h.unaudited = nil
	h.countUnadjusted()
}

// countUnadjusted publishes the number of containers that run without their limits.
// The caller holds h.mu.
func (h *Hook) countUnadjusted() {
	h.opts.Metrics.unadjusted.Set(float64(len(h.unadjusted)))
	h.unadjustedCount.Store(int64(len(h.unadjusted)))
}

// Unadjusted returns the number of containers that run without their limits because the runtime
// created the containers without the plugin.
func (h *Hook) Unadjusted() int { return int(h.unadjustedCount.Load()) }

// Unlimited reports whether a container, by the runtime's id, runs without its limits.
func (h *Hook) Unlimited(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, unlimited := h.unadjusted[id]
	return unlimited
}

// reportUnadjusted reports a container that runs without its limits. If
// guard.stop_unadjusted is set, reportUnadjusted also stops the container.
func (h *Hook) reportUnadjusted(c adjust.Container, why error) {
	log := h.opts.Log.With("namespace", c.Namespace, "pod", c.Pod, "container", c.Name)
	if !h.opts.Config.Guard.StopUnadjusted {
		log.Error("found a container that runs without limits: delete its pod", "error", why)
		h.writeEvent(c, kubeevents.VGPUUnadjusted, "container %q runs without its limits, because it was created while nri-vgpu was down: delete the pod (guard.stop_unadjusted in config.toml would have stopped it)", c.Name)
		return
	}
	if err := stop(c, h.opts.Proc); err != nil {
		log.Error("failed to stop a container that runs without limits: delete its pod", "error", err)
		h.writeEvent(c, kubeevents.VGPUUnadjusted, "container %q runs without its limits and cannot be stopped (%v): delete the pod", c.Name, err)
		return
	}
	log.Warn("stopped a container that ran without limits", "error", why)
	h.writeEvent(c, kubeevents.VGPUStopped, "container %q was stopped, because it ran without its limits: it was created while nri-vgpu was down", c.Name)
}

// carriesOurs reports whether a container mounts its own nri-vgpu files, and not
// another container's.
func (h *Hook) carriesOurs(c adjust.Container) bool {
	dir, carries := ourfiles.Dir(c.Mounts)
	want, err := h.opts.Store.Dir(c.PodUID, c.Name)
	return carries && err == nil && dir == want
}
