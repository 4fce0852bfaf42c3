// SPDX-License-Identifier: Apache-2.0

package heartbeat

import (
	"cmp"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/choice"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// maxComing bounds how many coming pods sums places on trial, so that many pods that fit nowhere
// cost at most some milliseconds. Pods that get no GPU do not count.
const maxComing = 64

// sums returns the used and the free capacity of the node, in the units of every dialect; nil if
// the pods are not known yet.
func (h *Heartbeat) sums(gpus []gpu.GPU) *nodereport.Sums {
	if !h.Pods.HasSynced() {
		return nil
	}
	all, used := h.asking()
	left := h.Ledger.Left(h.coming(all, gpus))
	sums := &nodereport.Sums{Used: used, Free: request.Free(gpus, left, h.Config)}
	if h.Config.Scheduling.Fit() {
		sums.Fit = fit(request.RoomsOf(gpus, left, h.Config), all)
	}
	return sums
}

// mostShapes bounds the shapes of pods in labels. Tenants can bind more pods to a node than can run.
const mostShapes = 256

// fit returns the Node's labels for the mode fit, and the shapes of pods that have no room. Beyond
// mostShapes, the shapes of the youngest pods are omitted, and the Node offers no turn.
func fit(rooms request.Rooms, asking []*corev1.Pod) *nodereport.Fit {
	f := nodereport.Fit{Labels: rooms.Labels()}
	seen := map[string]bool{}
	for _, pod := range slices.SortedFunc(slices.Values(asking), older) {
		shape := request.ShapeOf(pod)
		if seen[shape] || shape == "" {
			continue
		}
		if len(seen) == mostShapes {
			f.Closed = true
			break
		}
		seen[shape] = true
		f.Labels[request.FitHeld+shape] = "true"
		if !rooms.FitsShape(shape) {
			f.Full = append(f.Full, shape)
		}
	}
	slices.Sort(f.Full)
	return &f
}

// usage is the use of a pod; nil if the pod requests nothing. foreign is the number of the pod's
// containers that request each resource of another device plugin.
type usage struct {
	own     map[string]int64
	foreign map[string]int
}

// Foreign returns the number of containers that request each resource of another device plugin.
func (h *Heartbeat) Foreign() map[string]int {
	if counted := h.foreign.Load(); counted != nil {
		return *counted
	}
	return nil
}

// foreignByPattern returns the number of containers that match each element of
// node.foreign_resources. Tenants choose the names of resources, so the names would be an unbounded
// number of labels.
func (h *Heartbeat) foreignByPattern() map[string]int {
	sums := map[string]int{}
	for _, pattern := range h.Config.Node.ForeignResources {
		sums[pattern] = 0
	}
	for resource, n := range h.Foreign() {
		sums[h.Config.Node.ForeignPattern(resource)] += n
	}
	return sums
}

// asking returns the pods that request GPUs, and their use. An unchanged pod is read only once:
// tenants create pods of thousands of containers.
func (h *Heartbeat) asking() ([]*corev1.Pod, map[string]int64) {
	var asking []*corev1.Pod
	total, read, foreign := map[string]int64{}, map[*corev1.Pod]usage{}, map[string]int{}
	for _, pod := range h.Pods.List() {
		if pods.Ended(pod) {
			continue
		}
		used, known := h.read[pod]
		if !known {
			used = h.usage(pod)
		}
		read[pod] = used
		if used.own != nil {
			asking = append(asking, pod)
			request.Sum(total, used.own)
		}
		for resource, n := range used.foreign {
			foreign[resource] += n
		}
	}
	h.read = read
	h.foreign.Store(&foreign)
	return asking, total
}

func (h *Heartbeat) usage(pod *corev1.Pod) usage {
	used := usage{foreign: request.ForeignContainers(pod, h.Config.Node)}
	if one := []*corev1.Pod{pod}; len(request.Asking(one, h.Config.Dialects)) > 0 {
		used.own = request.Used(one, h.Config.Dialects)
	}
	return used
}

// coming returns the requests of pods that may not have their GPUs yet, the oldest first. Pods that
// get no GPU are omitted. These pods have an invalid request, a choice that no GPU fulfils, only a
// turn, or a refusal since the last release of GPUs.
func (h *Heartbeat) coming(asking []*corev1.Pod, gpus []gpu.GPU) []request.Pod {
	var waiting []*corev1.Pod
	for _, pod := range asking {
		if !h.Ledger.Holds(pods.RuntimeUID(pod)) {
			waiting = append(waiting, pod)
		}
	}
	slices.SortFunc(waiting, older)
	var coming []request.Pod
	bound := map[*corev1.Pod]binding{}
	for _, pod := range waiting {
		one, known := h.bound[pod]
		if !known || !slices.Equal(one.gpus, gpus) {
			one = h.bind(pod, gpus)
		}
		bound[pod] = one
		if one.asks && !h.Ledger.Refused(one.pod) && len(coming) < maxComing {
			coming = append(coming, one.pod)
		}
	}
	h.bound = bound
	return coming
}

// binding is the request of a pod, bound to the GPUs that the pod or a scheduler has chosen among
// some GPUs. asks reports whether a container can get GPUs.
type binding struct {
	pod  request.Pod
	gpus []gpu.GPU
	asks bool
}

// bind reads the request of a pod. The placement of the pod obeys the same choices.
func (h *Heartbeat) bind(pod *corev1.Pod, gpus []gpu.GPU) binding {
	asked, err := request.Read(pod, h.Config)
	if err == nil {
		asked, err = choice.Obey(asked, pod, gpus, h.Config)
	}
	if err == nil {
		asked, err = assign.Obey(asked, pod, gpus)
	}
	asked.UID = pods.RuntimeUID(pod)
	return binding{asked, gpus, err == nil && slices.ContainsFunc(asked.Containers, request.Container.Asks)}
}

// older orders pods by their age, the oldest first.
func older(x, y *corev1.Pod) int {
	return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.UID, y.UID))
}

// lowersTurns reports whether the Node must offer fewer turns, because a pod has ended.
func lowersTurns(before, now *nodereport.Sums) bool {
	return before != nil && now != nil && now.Fit != nil && now.Used[request.FitTurn] < before.Used[request.FitTurn]
}

// urgent reports whether the Node must be updated immediately. If less capacity is free than the
// Node offers, the scheduler may bind pods that find no room. If the Node offers less than its own
// pods use, kubelet would reject some of these pods. An increase of the free capacity can wait for
// the next round.
func urgent(reported, now *nodereport.Sums) bool {
	if reported == nil || now == nil {
		return reported != now
	}
	// In the mode fit, waiting pods need the free capacity, and the next pod needs a turn.
	if now.Fit != nil && !reflect.DeepEqual(reported, now) {
		return true
	}
	for name, free := range reported.Free {
		if now.Free[name] < free {
			return true
		}
	}
	for name, used := range now.Used {
		if used > reported.Used[name]+reported.Free[name] {
			return true
		}
	}
	return false
}
