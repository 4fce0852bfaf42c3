// SPDX-License-Identifier: Apache-2.0

package evict

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
)

// Verdict is the decision on a pod that was refused.
type Verdict int

// These constants are the verdicts.
const (
	Wait  Verdict = iota // the pod may still fit, or is already ending
	Keep                 // the pod stays: an eviction would not help
	Evict                // evict the pod, so that its controller creates another
)

// Judge decides whether to evict a pod after a number of refusals of its container. The pod is
// evicted only after as many refusals as patience returns. For a pod that stays, obstacle is the
// reason.
func Judge(pod *corev1.Pod, refusals, patience int) (verdict Verdict, obstacle string) {
	controller := metav1.GetControllerOf(pod)
	switch {
	case pod.DeletionTimestamp != nil, pods.Ended(pod), refusals == 0, refusals < patience:
		return Wait, ""
	case static(pod):
		return Keep, "it is a static pod, which kubelet would recreate on this node"
	case controller == nil:
		return Keep, "it has no controller that would recreate it"
	case controller.Kind == "DaemonSet":
		return Keep, "its DaemonSet would recreate it on this node"
	case pod.Spec.NodeSelector[corev1.LabelHostname] != "":
		return Keep, "its node selector names one node"
	}
	return Evict, ""
}

// static reports whether kubelet has a pod from a source other than the API server.
func static(pod *corev1.Pod) bool {
	source := pod.Annotations[pods.SourceAnnotation]
	return pod.Annotations[pods.MirrorAnnotation] != "" || source != "" && source != "api"
}
