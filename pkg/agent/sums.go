package agent

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/nodereport"
	"github.com/nri-vgpu/nri-vgpu/pkg/pods"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// maxComing bounds how many coming pods are placed on trial, so that a crowd of
// pods which fit nowhere costs no more than some milliseconds.
const maxComing = 64

// sums are what the node's pods use and what is left, in the units of every
// dialect; nil when the pods are not known yet.
func (a *Agent) sums(gpus []gpu.GPU) *nodereport.Sums {
	if !a.Pods.HasSynced() {
		return nil
	}
	all, used := a.asking()
	return &nodereport.Sums{
		Used: used,
		Free: request.Free(gpus, a.Ledger.Left(a.coming(all)), a.Config),
	}
}

// usage is what a pod uses; nil if it asks for nothing.
type usage map[string]int64

// asking returns the pods that ask for GPUs and what they use. A pod that has not changed
// is not read again: tenants make pods of thousands of containers.
func (a *Agent) asking() ([]*corev1.Pod, map[string]int64) {
	var asking []*corev1.Pod
	total, read := map[string]int64{}, map[*corev1.Pod]usage{}
	for _, pod := range a.Pods.List() {
		if pods.Ended(pod) {
			continue
		}
		used, known := a.read[pod]
		if one := []*corev1.Pod{pod}; !known && len(request.Asking(one, a.Config.Dialects)) > 0 {
			used = request.Used(one, a.Config.Dialects)
		}
		read[pod] = used
		if used != nil {
			asking = append(asking, pod)
			request.Sum(total, used)
		}
	}
	a.read = read
	return asking, total
}

// coming are those of the pods that ask for GPUs that may not have them yet, the
// oldest first. What is refused whatever room there is takes none.
func (a *Agent) coming(asking []*corev1.Pod) []request.Pod {
	var waiting []*corev1.Pod
	for _, pod := range asking {
		if !a.Ledger.Holds(pods.RuntimeUID(pod)) {
			waiting = append(waiting, pod)
		}
	}
	slices.SortFunc(waiting, func(x, y *corev1.Pod) int {
		return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.UID, y.UID))
	})
	var coming []request.Pod
	for _, pod := range waiting[:min(len(waiting), maxComing)] {
		asked, err := request.Read(pod, a.Config)
		if err != nil {
			continue
		}
		asked.UID = pods.RuntimeUID(pod)
		coming = append(coming, asked)
	}
	return coming
}

// urgent tells whether the Node must not go on saying what it was told last:
// where less is left than it offers, pods may be sent here in vain, and with
// less than its own pods use, kubelet would turn some away. That more is left
// can wait for the next round.
func urgent(told, now *nodereport.Sums) bool {
	if told == nil || now == nil {
		return told != now
	}
	for name, free := range told.Free {
		if now.Free[name] < free {
			return true
		}
	}
	for name, used := range now.Used {
		if used > told.Used[name]+told.Free[name] {
			return true
		}
	}
	return false
}
