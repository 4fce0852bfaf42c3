// SPDX-License-Identifier: Apache-2.0

// Package announce allocates GPUs to pods as soon as they are bound. In the mode scheduler, the
// package writes the node's choice of GPUs to the pods that another scheduler has bound.
// nri-vgpu-scheduler thus knows the choice.
package announce

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// interval is the time between checks of the pods without a Poke.
const interval = 5 * time.Second

// Pods are the node's pods as the API server reports them.
type Pods interface {
	List() []*corev1.Pod
	HasSynced() bool
}

// Places holds the allocations of the node's GPUs.
type Places interface {
	// Reserve allocates GPUs for the containers of a pod before they are created.
	Reserve(*corev1.Pod) error
	// Held returns the allocations of a pod. podUID is the pod's UID as the runtime reports it.
	Held(podUID string) []placement.Allocation
}

// Options configures an Announcer.
type Options struct {
	Client kubernetes.Interface
	Config config.Config
	Pods   Pods
	Places Places
	Log    *slog.Logger
}

// Announcer allocates GPUs for pods as soon as they are bound. In the mode scheduler, the Announcer
// writes the choice to the pods that no scheduler has assigned GPUs. nri-vgpu-scheduler thus need not
// guess the choice. In the mode fit, a pod thus gets the room that the scheduler saw, although other
// pods may end before the pod's containers start. The Announcer remembers only its failures, and may
// be stopped and restarted at any time.
type Announcer struct {
	Options
	poke loop.Wakeup
	// failures are the failed announcements, by pod. next holds, by pod, the time before which the
	// Announcer does not retry.
	failures loop.Failures
	next     map[string]time.Time
}

// New returns an Announcer that does nothing until Run.
func New(o Options) *Announcer {
	return &Announcer{Options: o, poke: loop.NewWakeup(), failures: loop.Failures{}, next: map[string]time.Time{}}
}

// Poke wakes the Announcer after pods were added or changed, or got GPUs. Poke never blocks.
func (a *Announcer) Poke() { a.poke.Signal() }

// Run announces until ctx ends. Run returns at once if scheduling.mode is "sums".
func (a *Announcer) Run(ctx context.Context) {
	if !a.Config.Scheduling.ByPlugin() && !a.Config.Scheduling.Fit() {
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
		}
		if a.Pods.HasSynced() {
			a.round(ctx)
		}
	}
}

// round checks all pods once. round reserves GPUs for pods with an assignment first, because their
// GPUs are not free.
func (a *Announcer) round(ctx context.Context) {
	all := request.Asking(a.Pods.List(), a.Config.Dialects)
	slices.SortFunc(all, func(x, y *corev1.Pod) int {
		return cmp.Or(cmp.Compare(rank(x), rank(y)), x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.UID, y.UID))
	})
	// round allocates all GPUs before the first write, which may wait for the API server.
	reserved := make([]error, len(all))
	for i, pod := range all {
		reserved[i] = a.reserve(pod)
	}
	known := map[string]bool{}
	for i, pod := range all {
		uid := string(pod.UID)
		known[uid] = true
		if time.Now().Before(a.next[uid]) {
			continue // the last attempt failed just now
		}
		err := reserved[i]
		if err == nil && a.Config.Scheduling.ByPlugin() {
			err = a.announce(ctx, pod)
		}
		if err != nil {
			a.next[uid] = time.Now().Add(interval)
		}
		if a.failures.Note(uid, err) == loop.Failed {
			a.Log.Warn("failed to allocate GPUs to a bound pod, or to announce them to nri-vgpu-scheduler; retrying", "namespace", pod.Namespace, "pod", pod.Name, "error", err)
		}
	}
	maps.DeleteFunc(a.failures, func(uid, _ string) bool { return !known[uid] })
	maps.DeleteFunc(a.next, func(uid string, _ time.Time) bool { return !known[uid] })
}

func assigned(pod *corev1.Pod) bool {
	_, has := pod.Annotations[assign.Annotation]
	return has
}

// rank is 0 for pods with an assignment and 1 for others.
func rank(pod *corev1.Pod) int {
	if assigned(pod) {
		return 0
	}
	return 1
}

// reserve allocates a pod's GPUs. A lack of room is not an error, because the refusal of a
// container reports the lack.
func (a *Announcer) reserve(pod *corev1.Pod) error {
	if _, err := request.Read(pod, a.Config); err != nil || pod.DeletionTimestamp != nil {
		return nil //nolint:nilerr // the refusal of a container reports the error
	}
	err := a.Places.Reserve(pod)
	if noRoom := (*placement.NoRoomError)(nil); errors.As(err, &noRoom) {
		return nil
	}
	return err
}

// announce writes a pod's GPUs to the pod unless a scheduler has assigned them.
func (a *Announcer) announce(ctx context.Context, pod *corev1.Pod) error {
	asked, err := request.FromPod(pod, a.Config.Dialects)
	if err != nil || assigned(pod) {
		return nil //nolint:nilerr // the refusal of a container reports the error
	}
	held := a.Places.Held(pods.RuntimeUID(pod))
	for _, c := range asked.Containers {
		if c.Asks() && !slices.ContainsFunc(held, func(a placement.Allocation) bool { return a.Container == c.Name }) {
			return nil // not yet
		}
	}
	text, err := assign.Format(asked, held)
	if err != nil {
		return fmt.Errorf("format the node's choice: %w", err)
	}
	if err := pods.Annotate(ctx, a.Client, pod, map[string]string{assign.Annotation: text}); err != nil {
		return err
	}
	a.Log.Debug("announced the GPUs of a pod to nri-vgpu-scheduler", "namespace", pod.Namespace, "pod", pod.Name, "assigned", text)
	return nil
}
