package request

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// PolicyAnnotation is on pods that choose what their limits on time mean. A
// user can write it: it counts where the node's configuration lets pods choose.
const PolicyAnnotation = "nri-vgpu.io/compute-policy"

// Shares tells whether a pod's limits on time are guarantees, by the node's
// policy or by the pod's choice. A choice that means nothing, or that the node
// does not leave to pods, is an error: such a pod must not start.
func Shares(pod *corev1.Pod, cfg config.Compute) (bool, error) {
	chosen, ok := pod.Annotations[PolicyAnnotation]
	switch {
	case !ok:
		chosen = cfg.Policy
	case chosen != config.ComputeCap && chosen != config.ComputeShare:
		return false, fmt.Errorf("pod %s/%s: annotation %s is %q; allowed: %s, %s",
			pod.Namespace, pod.Name, PolicyAnnotation, chosen, config.ComputeCap, config.ComputeShare)
	case chosen != cfg.Policy && !cfg.PodsMayChoose:
		return false, fmt.Errorf("pod %s/%s: annotation %s is %q; allowed: %s, as this node leaves pods no choice (compute.pods_may_choose)",
			pod.Namespace, pod.Name, PolicyAnnotation, chosen, cfg.Policy)
	}
	return chosen == config.ComputeShare, nil
}
