// Package evict moves pods on that the scheduler placed on this node, as the sum
// of its GPUs has room for them, but that fit no single GPU: after some refusals
// they are evicted, so that their controllers make others, elsewhere if there is
// room.
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

	"github.com/nri-vgpu/nri-vgpu/pkg/events"
	"github.com/nri-vgpu/nri-vgpu/pkg/pods"
)

const (
	// pace is the least time between two evictions from this node: each makes
	// the scheduler and a controller work, and often one is enough.
	pace = 10 * time.Second
	// evictTimeout bounds one request.
	evictTimeout = 10 * time.Second
	// forgetAfter is when a pod that is not refused any more, and a
	// controller none of whose pods was evicted, begin anew.
	forgetAfter = time.Hour
	// maxDoublings bounds the patience with a controller's pods that come
	// back here: 64 times as many refusals as for the first.
	maxDoublings = 6
	// maxPods bounds the pods whose refusals are kept, and maxWhy the bytes of
	// the reason that is kept of each: tenants can make pods that do not fit
	// as fast as they like. Of too many, the one goes whose last refusal is the
	// oldest.
	maxPods     = 1024
	maxWhy      = 1024
	queueLength = 64
)

// Pods are the node's pods as the API server has them.
type Pods interface {
	Cached(pods.Ref) (*corev1.Pod, bool)
}

// Events tell people what became of a pod.
type Events interface {
	OnPod(pod events.Pod, reason events.Reason, format string, args ...any)
}

// Options of an Evictor.
type Options struct {
	Client kubernetes.Interface
	Pods   Pods
	Events Events
	// After is how many refusals of one container make its pod be evicted;
	// 0 evicts none.
	After int
	Log   *slog.Logger
}

// Evictor counts refusals, and evicts.
type Evictor struct {
	Options
	due     chan pods.Ref
	metrics metrics

	mu      sync.Mutex
	refused map[string]*refusals // by the pod's runtime UID
	evicted map[controller]*eviction
}

// controller names a pod's controller. Whoever makes a pod writes the UID, and may name
// another namespace's controller.
type controller struct {
	namespace string
	uid       types.UID
}

// refusals are those of one pod.
type refusals struct {
	counts map[string]int // by container: kubelet tries all of a pod each time
	last   time.Time
	why    string
}

// eviction is what became of a controller's earlier pods.
type eviction struct {
	times int
	last  time.Time
}

// New gives an evictor that does nothing until Run.
func New(opts Options) *Evictor {
	return &Evictor{
		Options: opts,
		due:     make(chan pods.Ref, queueLength),
		metrics: newMetrics(),
		refused: map[string]*refusals{},
		evicted: map[controller]*eviction{},
	}
}

// Refused notes that a container was refused for want of room, and why. It
// never blocks.
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
	// A copy: the rest of a long text must not be kept with it.
	r.last, r.why = time.Now(), strings.Clone(strings.ToValidUTF8(why[:min(len(why), maxWhy)], ""))
	if r.counts[container] < e.After {
		return
	}
	select {
	case e.due <- ref:
	default: // the next refusal brings it again
	}
}

// makeRoom drops a pod if there are as many as may be. e.mu is held.
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

// Granted notes that a pod got room after all.
func (e *Evictor) Granted(ref pods.Ref) { e.PodGone(ref.UID) }

// PodGone forgets a pod, by the runtime's UID, that was deleted or has ended.
func (e *Evictor) PodGone(uid string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.refused, uid)
}

// Run evicts until ctx ends.
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
				sleep(ctx, pace)
			}
		}
	}
}

// consider evicts a pod if it is to be, and tells whether that was tried.
func (e *Evictor) consider(ctx context.Context, ref pods.Ref) bool {
	pod, ok := e.Pods.Cached(ref)
	if !ok {
		return false
	}
	count, why := e.count(ref)
	switch verdict, obstacle := Judge(pod, count, e.patience(pod)); verdict {
	case Keep:
		e.metrics.results.WithLabelValues(resultKept).Inc()
		e.tell(pod, events.VGPUNotEvicted, "it stays on this node, where it fits no GPU: %s; %s", obstacle, why)
		return false
	case Evict:
		e.evict(ctx, pod, count, why)
		return true
	default:
		return false
	}
}

// count gives how often a pod's container was refused, and why the last time.
func (e *Evictor) count(ref pods.Ref) (int, string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r, ok := e.refused[ref.UID]
	if !ok {
		return 0, ""
	}
	most := 0
	for _, n := range r.counts {
		most = max(most, n)
	}
	return most, r.why
}

// patience is how many refusals a pod has to bear. It doubles with each pod of
// the same controller that was evicted and came back here: there is no other
// place for it.
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
		// Not another pod of its name.
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
	})
	log := e.Log.With("namespace", pod.Namespace, "pod", pod.Name, "refusals", count)
	switch {
	case err == nil:
		e.metrics.results.WithLabelValues(resultEvicted).Inc()
		e.remember(pod)
		e.tell(pod, events.VGPUEvicted, "it fits no GPU of this node, after %d refusals: its controller makes another; %s", count, why)
		log.Warn("evicted a pod that fits no GPU", "why", why)
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // it has gone already
	case apierrors.IsTooManyRequests(err):
		e.metrics.results.WithLabelValues(resultBudget).Inc()
		e.tell(pod, events.VGPUNotEvicted, "it stays on this node, where it fits no GPU: its disruption budget forbids its eviction; %s", why)
	default:
		e.metrics.results.WithLabelValues(resultFailed).Inc()
		log.Warn("a pod that fits no GPU could not be evicted; trying again when it is refused again", "error", err)
	}
}

func (e *Evictor) tell(pod *corev1.Pod, reason events.Reason, format string, args ...any) {
	e.Events.OnPod(events.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}, reason, format, args...)
}

// remember notes that a controller's pod was evicted.
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

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
