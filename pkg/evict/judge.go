package evict

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/pods"
)

// Verdict is what becomes of a pod that was refused.
type Verdict int

// The verdicts.
const (
	Wait  Verdict = iota // it may fit yet, or is going anyway
	Keep                 // it stays: an eviction would help nobody
	Evict                // its controller is to make another
)

// Judge decides on a pod of which a container was refused so often, and that
// has to bear so many refusals. For one that is kept it says why.
func Judge(pod *corev1.Pod, refusals, patience int) (verdict Verdict, obstacle string) {
	controller := metav1.GetControllerOf(pod)
	switch {
	case pod.DeletionTimestamp != nil, pods.Ended(pod), refusals == 0, refusals < patience:
		return Wait, ""
	case static(pod):
		return Keep, "it is a static pod, which kubelet would start here again"
	case controller == nil:
		return Keep, "it has no controller that would make another"
	case controller.Kind == "DaemonSet":
		return Keep, "its DaemonSet would make another here"
	case pod.Spec.NodeSelector[corev1.LabelHostname] != "":
		return Keep, "its node selector names one node"
	}
	return Evict, ""
}

// static tells whether kubelet has a pod from elsewhere than the API server.
func static(pod *corev1.Pod) bool {
	source := pod.Annotations[pods.SourceAnnotation]
	return pod.Annotations[pods.MirrorAnnotation] != "" || source != "" && source != "api"
}
