// SPDX-License-Identifier: Apache-2.0

package why

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// ownScheduler is the name of nri-vgpu-scheduler in the pods that it binds.
const ownScheduler = "nri-vgpu-scheduler"

// LeftFrom returns the mode of scheduling in which a waiting pod was created, if no scheduler binds the
// pod in the present mode. Otherwise, LeftFrom returns "". The spec of a pod is immutable, so only
// another pod helps.
func LeftFrom(pod *corev1.Pod, mode string, dialects config.Dialects) string {
	one := []*corev1.Pod{pod}
	switch {
	case pod.Spec.NodeName != "" || ended(pod) || len(request.Asking(one, dialects)) == 0:
		return ""
	case mode != config.ScheduleByFit && request.Used(one, dialects)[request.FitTurn] > 0:
		return config.ScheduleByFit
	case mode != config.ScheduleByPlugin && pod.Spec.SchedulerName == ownScheduler:
		return config.ScheduleByPlugin
	}
	return ""
}
