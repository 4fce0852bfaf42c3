// SPDX-License-Identifier: Apache-2.0

// Package answer reports to Volcano's scheduler the results of the scheduler's assignments.
package answer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/volcano"
	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

const (
	// interval is the time between checks of the pods without a Poke.
	interval = 5 * time.Second
	// gather is the time for which the Answerer batches changes that arrive together.
	gather = 50 * time.Millisecond
)

// Pods are the node's pods as the API server reports them.
type Pods interface {
	List() []*corev1.Pod
	HasSynced() bool
}

// Places holds the allocations of the node's GPUs.
type Places interface {
	// Reserve allocates GPUs for the containers of an assigned pod, before they are created.
	Reserve(*corev1.Pod) error
	// Held returns the allocations of a pod. podUID is the pod's UID as the runtime reports it.
	Held(podUID string) []placement.Allocation
}

// Options configures an Answerer.
type Options struct {
	Client kubernetes.Interface
	Config config.Config
	Pods   Pods
	Places Places
	// Changed, if set, is called after changes of State. Changed must not block.
	Changed func()
	Log     *slog.Logger
}

// Answerer reports to Volcano's scheduler, by the annotations of pods, the results of the
// scheduler's assignments and the allocations of other pods. Answerer derives the annotations from
// the pods and their allocations, so the Answerer may be stopped and restarted at any time.
type Answerer struct {
	Options
	poke loop.Wakeup

	mu sync.Mutex
	// outcomes records whether the last request of a pod's container was refused, by the runtime's
	// names of the pod and the container.
	outcomes map[string]map[string]bool
	state    nodereport.Volcano
	// seen reports whether the scheduler places pods on this node.
	seen bool
	// missed are the pods that were already counted as missed.
	missed map[string]bool
	// failures are the failed answers, by pod.
	failures loop.Failures
}

// New returns an Answerer that does nothing until Run.
func New(opts Options) *Answerer {
	return &Answerer{Options: opts, poke: loop.NewWakeup(), outcomes: map[string]map[string]bool{}, missed: map[string]bool{}}
}

// Poke wakes the Answerer because pods were added, changed or deleted. Poke never blocks.
func (a *Answerer) Poke() { a.poke.Signal() }

// Outcome records whether a container was refused. Outcome never blocks for long. If the dialect is
// disabled, Outcome records nothing, because Run, which drops deleted pods, does not run.
func (a *Answerer) Outcome(podUID, container string, refused bool) {
	if !a.Config.Dialects.Volcano.Enabled {
		return
	}
	a.mu.Lock()
	if a.outcomes[podUID] == nil {
		a.outcomes[podUID] = map[string]bool{}
	}
	a.outcomes[podUID][container] = refused
	a.mu.Unlock()
	a.Poke()
}

// State returns the state that the patcher needs to remove the node's lock.
func (a *Answerer) State() nodereport.Volcano {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state
}

// Run answers until ctx ends.
func (a *Answerer) Run(ctx context.Context) {
	if !a.Config.Dialects.Volcano.Enabled {
		return
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-a.poke:
			if !loop.Sleep(ctx, gather) {
				return
			}
		}
		a.round(ctx)
	}
}

// round checks all pods once.
func (a *Answerer) round(ctx context.Context) {
	if !a.Pods.HasSynced() {
		return
	}
	all := a.Pods.List()
	a.forget(all)
	a.seen = a.seen || slices.ContainsFunc(all, func(pod *corev1.Pod) bool { return volcano.Assigned(pod) || pod.Annotations[volcano.Group] != "" })
	state, missed := nodereport.Volcano{}, 0
	for _, pod := range all {
		if uid := string(pod.UID); !a.missed[uid] && volcano.Missed(pod, a.Config.Dialects.Volcano) {
			a.missed[uid] = true
			missed++
		}
		settled := pods.Ended(pod) || volcano.Settled(pod)
		if !pods.Ended(pod) {
			written, err := a.answer(ctx, pod)
			a.logOnce(pod, err)
			settled = settled || written
		}
		switch {
		case !volcano.Assigned(pod):
		case settled:
			state.AnsweredAt = max(state.AnsweredAt, volcano.BoundAt(pod))
		default:
			state.Pending++
		}
	}
	a.publish(state, missed)
}

// publish stores the state. publish keeps the latest AnsweredAt, because deleted pods have no
// AnsweredAt.
func (a *Answerer) publish(state nodereport.Volcano, missed int) {
	a.mu.Lock()
	state.AnsweredAt = max(state.AnsweredAt, a.state.AnsweredAt)
	state.Missed = a.state.Missed + missed
	changed := state != a.state
	a.state = state
	a.mu.Unlock()
	if changed && a.Changed != nil {
		a.Changed()
	}
}

// answer writes the node's answer about a pod to the pod's annotations. settled reports whether the
// result of the pod's assignment is written.
func (a *Answerer) answer(ctx context.Context, pod *corev1.Pod) (settled bool, err error) {
	uid := pods.RuntimeUID(pod)
	assigned := volcano.Assigned(pod)
	if !assigned && !a.seen {
		return false, nil
	}
	if assigned && pod.DeletionTimestamp == nil {
		// If no GPU has room, the refusal of the container reports the reason.
		err = a.Places.Reserve(pod)
	}
	held := a.Places.Held(uid)
	var changes map[string]string
	if assigned {
		changes = volcano.Answer(pod, a.Config.Dialects.Volcano, held, a.failed(uid, pod))
	} else {
		changes = volcano.Announce(pod, a.Config.Dialects.Volcano, held)
	}
	if len(changes) == 0 {
		return false, err
	}
	if writeErr := pods.Annotate(ctx, a.Client, pod, changes); writeErr != nil {
		return false, errors.Join(err, fmt.Errorf("answer Volcano's scheduler: %w", writeErr))
	}
	a.Log.Debug("answered Volcano's scheduler", "namespace", pod.Namespace, "pod", pod.Name, "changes", changes)
	return changes[volcano.Phase] != "", err
}

// failed reports whether the last request of one of the pod's containers was refused. An earlier
// process's answer holds until the next outcome.
func (a *Answerer) failed(uid string, pod *corev1.Pod) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	known, ok := a.outcomes[uid]
	if !ok {
		return pod.Annotations[volcano.Phase] == volcano.Failed
	}
	for _, refused := range known {
		if refused {
			return true
		}
	}
	return false
}

// logOnce logs each error of a pod once.
func (a *Answerer) logOnce(pod *corev1.Pod, err error) {
	if a.failures.Note(string(pod.UID), err) == loop.Failed {
		a.Log.Warn("failed to answer an assignment by Volcano's scheduler; retrying", "namespace", pod.Namespace, "pod", pod.Name, "error", err)
	}
}

// forget drops the state of deleted pods.
func (a *Answerer) forget(all []*corev1.Pod) {
	known := map[string]bool{}
	for _, pod := range all {
		known[string(pod.UID)], known[pods.RuntimeUID(pod)] = true, true
	}
	maps.DeleteFunc(a.failures, func(uid, _ string) bool { return !known[uid] })
	maps.DeleteFunc(a.missed, func(uid string, _ bool) bool { return !known[uid] })
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.outcomes, func(uid string, _ map[string]bool) bool { return !known[uid] })
}
