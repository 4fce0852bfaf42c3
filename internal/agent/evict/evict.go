// SPDX-License-Identifier: Apache-2.0

// Package evict evicts pods that fit no single GPU of the node. The scheduler places a pod on the
// node if the sum of the GPUs has room. After some refusals the evictor evicts the pod. The pod's
// controller then creates another pod, which may fit another node.
package evict

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/internal/loop"
)

const (
	// pace is the least time between two evictions from this node. Each eviction costs the
	// scheduler and a controller work, and a single eviction often suffices.
	pace = 10 * time.Second
	// evictTimeout bounds one request.
	evictTimeout = 10 * time.Second
	// forgetAfter is the time for which the evictor remembers refused pods after their last
	// refusal, and controllers after the last eviction of their pods.
	forgetAfter = time.Hour
	// maxDoublings bounds how often the required number of refusals doubles for a controller's pods
	// that return to this node. Six doublings require 64 times the refusals of the first pod.
	maxDoublings = 6
	// maxPods bounds the pods whose refusals are kept, and maxWhy the bytes of each pod's reason.
	// Tenants can create unfitting pods at any rate. If maxPods are recorded, the evictor drops the
	// pod whose last refusal is the oldest.
	maxPods     = 1024
	maxWhy      = 1024
	queueLength = 64
)

// Pods are the node's pods as the API server reports them.
type Pods interface {
	Cached(pods.Ref) (*corev1.Pod, bool)
}

// Events records Events about a pod.
type Events interface {
	OnPod(pod events.Pod, reason events.Reason, format string, args ...any)
}

// Options configures an Evictor.
type Options struct {
	Client kubernetes.Interface
	Pods   Pods
	Events Events
	// After is the number of refusals of one container after which its pod is evicted; 0 evicts no
	// pod.
	After int
	Log   *slog.Logger
}

// Evictor counts refusals and evicts pods.
type Evictor struct {
	Options
	due     chan pods.Ref
	metrics metrics

	mu      sync.Mutex
	refused map[string]*refusals // by the pod's runtime UID
	evicted map[controller]*eviction
}

// controller identifies a pod's controller within the pod's namespace. The creator of a pod writes
// the UID, and may name another namespace's controller.
type controller struct {
	namespace string
	uid       types.UID
}

// refusals are the refusals of one pod.
type refusals struct {
	counts map[string]int // by container: kubelet retries all containers of a pod
	last   time.Time
	why    string
}

// eviction counts the evictions of a controller's earlier pods.
type eviction struct {
	times int
	last  time.Time
}

// New returns an evictor that does nothing until Run.
func New(opts Options) *Evictor {
	return &Evictor{
		Options: opts,
		due:     make(chan pods.Ref, queueLength),
		metrics: newMetrics(),
		refused: map[string]*refusals{},
		evicted: map[controller]*eviction{},
	}
}

// Refused records that a container was refused for lack of room, and the reason. Refused never
// blocks.
func (e *Evictor) Refused(ref pods.Ref, container, why string) {
	if e.After == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	r, ok := e.refused[ref.UID]
	if !ok {
		e.makeRoom()
		r = &refusals{counts: map[string]int{}}
		e.refused[ref.UID] = r
	}
	r.counts[container]++
	// Cloning releases the rest of a long text.
	r.last, r.why = time.Now(), strings.Clone(strings.ToValidUTF8(why[:min(len(why), maxWhy)], ""))
	if r.counts[container] < e.After {
		return
	}
	select {
	case e.due <- ref:
	default: // the next refusal queues the pod again
	}
}

// makeRoom drops the oldest pod if maxPods are recorded. The caller holds e.mu.
func (e *Evictor) makeRoom() {
	if len(e.refused) < maxPods {
		return
	}
	oldest := ""
	for uid, r := range e.refused {
		if oldest == "" || r.last.Before(e.refused[oldest].last) {
			oldest = uid
		}
	}
	delete(e.refused, oldest)
}

// Granted drops the refusals of a pod that has got room.
func (e *Evictor) Granted(ref pods.Ref) { e.PodGone(ref.UID) }

// PodGone drops a pod that was deleted or has ended, by the runtime's UID.
func (e *Evictor) PodGone(uid string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.refused, uid)
}

// Run evicts the pods that are due until ctx ends.
func (e *Evictor) Run(ctx context.Context) {
	tick := time.NewTicker(forgetAfter / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			e.forget(now)
		case ref := <-e.due:
			if e.consider(ctx, ref) {
				loop.Sleep(ctx, pace)
			}
		}
	}
}

// consider evicts a pod that is due for eviction, and reports whether it attempted an eviction.
func (e *Evictor) consider(ctx context.Context, ref pods.Ref) bool {
	pod, ok := e.Pods.Cached(ref)
	if !ok {
		return false
	}
	count, why := e.count(ref)
	switch verdict, obstacle := Judge(pod, count, e.patience(pod)); verdict {
	case Keep:
		e.metrics.results.WithLabelValues(resultKept).Inc()
		e.writeEvent(pod, events.VGPUNotEvicted, "it stays on this node, where it fits no GPU: %s; %s", obstacle, why)
		return false
	case Evict:
		e.evict(ctx, pod, count, why)
		return true
	default:
		return false
	}
}

// count returns the number of refusals of a pod's container, and the reason of the last refusal.
func (e *Evictor) count(ref pods.Ref) (int, string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r, ok := e.refused[ref.UID]
	if !ok {
		return 0, ""
	}
	var most int
	for _, n := range r.counts {
		most = max(most, n)
	}
	return most, r.why
}

// patience returns the number of refusals after which a pod is evicted. The number doubles with
// each evicted pod of the same controller, because a pod that returns to this node fits no other
// node.
func (e *Evictor) patience(pod *corev1.Pod) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return e.After
	}
	before := e.evicted[controller{pod.Namespace, owner.UID}]
	if before == nil {
		return e.After
	}
	return e.After << min(before.times, maxDoublings)
}

func (e *Evictor) evict(ctx context.Context, pod *corev1.Pod, count int, why string) {
	ctx, cancel := context.WithTimeout(ctx, evictTimeout)
	defer cancel()
	err := e.Client.PolicyV1().Evictions(pod.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		// The UID prevents the eviction of another pod with this name.
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
	})
	log := e.Log.With("namespace", pod.Namespace, "pod", pod.Name, "refusals", count)
	switch {
	case err == nil:
		e.metrics.results.WithLabelValues(resultEvicted).Inc()
		e.remember(pod)
		e.writeEvent(pod, events.VGPUEvicted, "it fits no GPU of this node, after %d refusals: its controller creates another pod; %s", count, why)
		log.Warn("evicted a pod that fits no GPU", "why", why)
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // the pod is already gone
	case apierrors.IsTooManyRequests(err):
		e.metrics.results.WithLabelValues(resultBudget).Inc()
		e.writeEvent(pod, events.VGPUNotEvicted, "it stays on this node, where it fits no GPU: its disruption budget forbids its eviction; %s", why)
	default:
		e.metrics.results.WithLabelValues(resultFailed).Inc()
		log.Warn("failed to evict a pod that fits no GPU; retrying at its next refusal", "error", err)
	}
}

func (e *Evictor) writeEvent(pod *corev1.Pod, reason events.Reason, format string, args ...any) {
	e.Events.OnPod(events.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}, reason, format, args...)
}

// remember records that a controller's pod was evicted.
func (e *Evictor) remember(pod *corev1.Pod) {
	e.mu.Lock()
	defer e.mu.Unlock()
	owner := metav1.GetControllerOf(pod)
	of := controller{pod.Namespace, owner.UID}
	before, ok := e.evicted[of]
	if !ok {
		before = &eviction{}
		e.evicted[of] = before
	}
	before.times++
	before.last = time.Now()
}

func (e *Evictor) forget(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for uid, r := range e.refused {
		if now.Sub(r.last) >= forgetAfter {
			delete(e.refused, uid)
		}
	}
	for uid, o := range e.evicted {
		if now.Sub(o.last) >= forgetAfter {
			delete(e.evicted, uid)
		}
	}
}
