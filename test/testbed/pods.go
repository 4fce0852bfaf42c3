// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// These are the images of the workloads. The first and the second image contain the same programs,
// but the second image sets NVIDIA_VISIBLE_DEVICES=all, as CUDA base images do. The third image is
// empty.
const (
	Image      = "localhost/nri-vgpu/workload:test"
	CUDAImage  = "localhost/nri-vgpu/workload:cuda"
	EmptyImage = "localhost/nri-vgpu/workload:empty"
)

// Limits is a list of resources by name, in whole units.
type Limits map[string]int64

func (l Limits) list() corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, units := range l {
		list[corev1.ResourceName(name)] = *resource.NewQuantity(units, resource.DecimalSI)
	}
	return list
}

// Container returns a container of Image that runs a command under limits.
func Container(name string, limits Limits, command ...string) corev1.Container {
	return corev1.Container{
		Name:            name,
		Image:           Image,
		ImagePullPolicy: corev1.PullNever,
		Command:         command,
		Resources:       corev1.ResourceRequirements{Limits: limits.list()},
	}
}

// Pod returns a pod of these containers that never restarts and has a grace period of one second.
// Without this second the API server would delete the pod while the pod still runs.
func Pod(name string, containers ...corev1.Container) *corev1.Pod {
	second := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: &second,
			Containers:                    containers,
		},
	}
}
