package volcano

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/nodereport"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/pods"
)

const (
	// interval is how often the pods are looked at when nothing is heard.
	interval = 5 * time.Second
	// gather is how long changes are gathered that come together.
	gather = 50 * time.Millisecond
	// patchTimeout bounds one request.
	patchTimeout = 5 * time.Second
)

// Pods are the node's pods as the API server has them.
type Pods interface {
	List() []*corev1.Pod
	HasSynced() bool
}

// Places are what containers hold of the node's GPUs.
type Places interface {
	// Reserve gives an assigned pod's containers their GPUs, ahead of their
	// creation.
	Reserve(*corev1.Pod) error
	// Held are the allocations of a pod, by the runtime's UID.
	Held(podUID string) []placement.Allocation
}

// Options of an Answerer.
type Options struct {
	Client kubernetes.Interface
	Config config.Config
	Pods   Pods
	Places Places
	// Changed, where set, is called when State has changed; it must not block.
	Changed func()
	Log     *slog.Logger
}

// Answerer tells Volcano's scheduler, by the annotations of pods, what became of
// its assignments, and what others hold. What to write follows from the pods and
// from what they hold, so that it may be ended and begun again at any time.
type Answerer struct {
	Options
	poke chan struct{}

	mu sync.Mutex
	// outcomes is whether a pod's container was refused when it was last asked
	// for, by the pod's and the container's name to the runtime.
	outcomes map[string]map[string]bool
	state    nodereport.Volcano
	// seen: the scheduler places pods on this node.
	seen bool
	// missed are the pods that were counted as such.
	missed map[string]bool
	// said are errors, by pod, that were logged.
	said map[string]string
}

// New gives an Answerer that does nothing until Run.
func New(opts Options) *Answerer {
	return &Answerer{Options: opts, poke: make(chan struct{}, 1), outcomes: map[string]map[string]bool{}, missed: map[string]bool{}, said: map[string]string{}}
}

// Poke says that pods have come, changed or gone. It never blocks.
func (a *Answerer) Poke() {
	select {
	case a.poke <- struct{}{}:
	default:
	}
}

// Outcome notes whether a container was refused. It never blocks for long.
// With the dialect disabled it keeps nothing, as Run, which forgets pods that
// have gone, does not run.
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

// State is what the patcher needs to know, to take the node's lock away.
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
			select {
			case <-ctx.Done():
				return
			case <-time.After(gather):
			}
		}
		a.round(ctx)
	}
}

// round looks at all pods once.
func (a *Answerer) round(ctx context.Context) {
	if !a.Pods.HasSynced() {
		return
	}
	all := a.Pods.List()
	a.forget(all)
	a.seen = a.seen || slices.ContainsFunc(all, func(pod *corev1.Pod) bool { return Assigned(pod) || pod.Annotations[Group] != "" })
	state, missed := nodereport.Volcano{}, 0
	for _, pod := range all {
		if uid := string(pod.UID); !a.missed[uid] && Missed(pod, a.Config.Dialects.Volcano) {
			a.missed[uid] = true
			missed++
		}
		settled := pods.Ended(pod) || Settled(pod)
		if !pods.Ended(pod) {
			written, err := a.answer(ctx, pod)
			a.say(pod, err)
			settled = settled || written
		}
		switch {
		case !Assigned(pod):
		case settled:
			state.AnsweredAt = max(state.AnsweredAt, BoundAt(pod))
		default:
			state.Pending++
		}
	}
	a.publish(state, missed)
}

// publish keeps the latest answer, as pods go.
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

// answer writes what the scheduler should know of a pod. It tells whether it has
// said how its assignment went.
func (a *Answerer) answer(ctx context.Context, pod *corev1.Pod) (settled bool, err error) {
	uid := pods.RuntimeUID(pod)
	assigned := Assigned(pod)
	if !assigned && !a.seen {
		return false, nil
	}
	if assigned && pod.DeletionTimestamp == nil {
		// Its own refusal will tell, should there be no room.
		err = a.Places.Reserve(pod)
	}
	held := a.Places.Held(uid)
	var changes map[string]string
	if assigned {
		changes = Answer(pod, a.Config.Dialects.Volcano, held, a.failed(uid, pod))
	} else {
		changes = Announce(pod, a.Config.Dialects.Volcano, held)
	}
	if len(changes) == 0 {
		return false, err
	}
	if patchErr := a.patch(ctx, pod, changes); patchErr != nil {
		return false, errors.Join(err, patchErr)
	}
	a.Log.Debug("answered Volcano's scheduler", "namespace", pod.Namespace, "pod", pod.Name, "changes", changes)
	return changes[Phase] != "", err
}

// failed tells whether one of the pod's containers was refused when it was last
// asked for. What an earlier process said holds until there is news.
func (a *Answerer) failed(uid string, pod *corev1.Pod) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	known, ok := a.outcomes[uid]
	if !ok {
		return pod.Annotations[Phase] == Failed
	}
	for _, refused := range known {
		if refused {
			return true
		}
	}
	return false
}

// patch writes annotations by way of the status, so that nothing of the pod's
// spec can be written with the same rights.
func (a *Answerer) patch(ctx context.Context, pod *corev1.Pod, changes map[string]string) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": changes}})
	if err != nil {
		return fmt.Errorf("encode an answer to Volcano's scheduler: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, patchTimeout)
	defer cancel()
	_, err = a.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it has gone, or another has its name
	}
	if err != nil {
		return fmt.Errorf("answer Volcano's scheduler: %w", err)
	}
	return nil
}

// say logs each error of a pod once.
func (a *Answerer) say(pod *corev1.Pod, err error) {
	uid := string(pod.UID)
	if err == nil {
		delete(a.said, uid)
		return
	}
	if a.said[uid] != err.Error() {
		a.said[uid] = err.Error()
		a.Log.Warn("an assignment by Volcano's scheduler is not answered yet", "namespace", pod.Namespace, "pod", pod.Name, "error", err)
	}
}

// forget drops what is known of pods that have gone.
func (a *Answerer) forget(all []*corev1.Pod) {
	known := map[string]bool{}
	for _, pod := range all {
		known[string(pod.UID)], known[pods.RuntimeUID(pod)] = true, true
	}
	for uid := range a.said {
		if !known[uid] {
			delete(a.said, uid)
		}
	}
	for uid := range a.missed {
		if !known[uid] {
			delete(a.missed, uid)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid := range a.outcomes {
		if !known[uid] {
			delete(a.outcomes, uid)
		}
	}
}
