// SPDX-License-Identifier: Apache-2.0

package request

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// These annotations of a pod set the maximum of its limits on time. A user can write the
// annotations: the annotations are valid only if the node's configuration lets pods choose.
const (
	// PolicyAnnotation sets the maximum of all containers: "cap" stands for the container's limit,
	// "share" for all of a GPU's time.
	PolicyAnnotation = "nri-vgpu.io/compute-policy"
	// MaximumAnnotation is a prefix; a resource name follows it. The limit of each container that
	// requests the resource becomes a guarantee. The annotated number of units is the container's
	// maximum. MaximumAnnotation overrides PolicyAnnotation.
	MaximumAnnotation = "gpu-compute-limit."
)

// setMaxima sets the maxima of a pod's shares from the node's policy and the pod's annotations.
// setMaxima returns an error if an annotation is invalid or not allowed on the node: the pod must
// not start.
func setMaxima(pod *corev1.Pod, asked Pod, cfg config.Config) error {
	policy, err := policyOf(pod, cfg.Compute)
	if err != nil {
		return err
	}
	if policy == config.ComputeShare {
		for _, c := range asked.Containers {
			for i := range c.Shares {
				c.Shares[i].setMaximum(Whole)
			}
		}
	}
	return eachAnnotated(pod, asked, MaximumAnnotation, cfg, setMaximum)
}

// policyOf returns the policy that the pod chooses, or the node's policy if the pod chooses none.
func policyOf(pod *corev1.Pod, cfg config.Compute) (string, error) {
	chosen, ok := pod.Annotations[PolicyAnnotation]
	switch {
	case !ok:
		return cfg.Policy, nil
	case chosen != config.ComputeCap && chosen != config.ComputeShare:
		return "", fmt.Errorf("annotation %s is %q; allowed: %s, %s", PolicyAnnotation, chosen, config.ComputeCap, config.ComputeShare)
	case chosen != cfg.Policy && !cfg.PodsMayChoose:
		return "", fmt.Errorf("annotation %s is %q; allowed: %s, as this node leaves pods no choice (compute.pods_may_choose)",
			PolicyAnnotation, chosen, cfg.Policy)
	}
	return chosen, nil
}

// setMaximum sets the maxima of the containers that request the named resource.
func setMaximum(asking []asker, name string, n int64, cfg config.Config) error {
	if !cfg.Compute.PodsMayChoose {
		return errors.New("no such annotation, as this node leaves pods no choice (compute.pods_may_choose)")
	}
	for _, a := range asking {
		if !a.isTime(name) {
			return fmt.Errorf("the name of a resource of GPU time, of which container %q requests a part", a.Name)
		}
		top := a.amounts[name] + most(maxMiB, func(more int64) bool { return a.instead(name, a.amounts[name]+more) != nil })
		if n < a.amounts[name] || n > top {
			return fmt.Errorf("%d to %d for container %q, which requests %d: the maximum is at least the guarantee",
				a.amounts[name], top, a.Name, a.amounts[name])
		}
		for i, share := range a.instead(name, n) {
			a.Shares[i].setMaximum(share.ComputePPM)
		}
	}
	return nil
}

// setMaximum sets the maximum of a share that has a limit on time.
func (s *Share) setMaximum(ppm uint32) {
	s.MaximumPPM = 0
	if s.ComputePPM > 0 && ppm > s.ComputePPM {
		s.MaximumPPM = ppm
	}
}

// isTime reports whether a resource determines the container's part of a GPU's time.
func (a asker) isTime(name string) bool {
	for _, n := range []int64{a.amounts[name] + 1, a.amounts[name] - 1} {
		for i, share := range a.instead(name, n) {
			if share.ComputePPM != a.Shares[i].ComputePPM {
				return true
			}
		}
	}
	return false
}
