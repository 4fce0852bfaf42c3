// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/fragmentation"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// size is a pod's request of each of its GPUs, and the number of pods in a hundred with this
// request.
type size struct {
	gpus    int64
	mib     int64
	percent int64 // of the time; 0: no limit
	weight  int
}

// builtIn are the built-in sizes, by the resources that pods request. The amounts of memory are for
// pods that share an 80 GiB card. Pods with limits on time request memory and time in different
// proportions, so that neither resource alone decides.
var builtIn = []struct {
	resources string
	sizes     []size
}{
	{"memory", []size{
		{1, 4 << 10, 0, 22}, {1, 8 << 10, 0, 20}, {1, 10 << 10, 0, 12}, {1, 16 << 10, 0, 14}, {1, 20 << 10, 0, 8},
		{1, 24 << 10, 0, 7}, {1, 40 << 10, 0, 8}, {1, 80 << 10, 0, 5}, {2, 40 << 10, 0, 2}, {4, 16 << 10, 0, 2},
	}},
	{"memory+cores", []size{
		{1, 4 << 10, 10, 16}, {1, 4 << 10, 30, 8}, {1, 8 << 10, 10, 14}, {1, 8 << 10, 50, 6}, {1, 16 << 10, 20, 14},
		{1, 20 << 10, 10, 8}, {1, 24 << 10, 50, 8}, {1, 40 << 10, 25, 8}, {1, 40 << 10, 70, 6}, {1, 80 << 10, 100, 6},
		{2, 20 << 10, 40, 3}, {4, 16 << 10, 30, 3},
	}},
}

// shape is a size in a dialect: the pod's spec, and the values that each side reads from the spec.
type shape struct {
	size
	asked request.Pod
	// room is the need of each GPU, as the policy of the mode fit computes the need.
	room request.Room
	// units is the amount of each counted resource, as the scheduler counts amounts.
	units []int64
	// usual is the shape in the form of package fragmentation.
	usual fragmentation.Shape
}

// dialects contains functions that convert a size to the limits of a container.
var dialects = []func(size, config.Dialects) corev1.ResourceList{
	func(s size, d config.Dialects) corev1.ResourceList {
		return limits(s, d.Native.Number, d.Native.Memory, d.Native.Cores)
	},
	func(s size, d config.Dialects) corev1.ResourceList {
		return limits(s, d.Volcano.Number, d.Volcano.Memory, d.Volcano.Cores)
	},
}

func limits(s size, number, memory, cores string) corev1.ResourceList {
	list := corev1.ResourceList{
		corev1.ResourceName(number): *resource.NewQuantity(s.gpus, resource.DecimalSI),
		corev1.ResourceName(memory): *resource.NewQuantity(s.mib, resource.DecimalSI),
	}
	if s.percent > 0 {
		list[corev1.ResourceName(cores)] = *resource.NewQuantity(s.percent, resource.DecimalSI)
	}
	return list
}

// shapesOf parses each size in each dialect as the agent and the scheduler parse a pod.
func shapesOf(sizes []size, cfg config.Config, resources []string) ([]shape, error) {
	var all []shape
	for _, write := range dialects {
		for _, s := range sizes {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "pod"},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: container, Resources: corev1.ResourceRequirements{Limits: write(s, cfg.Dialects)},
				}}},
			}
			asked, err := request.Read(pod, cfg)
			if err != nil {
				return nil, fmt.Errorf("read a pod of size %+v: %w", s, err)
			}
			used := request.Used([]*corev1.Pod{pod}, cfg.Dialects)
			units := make([]int64, len(resources))
			for i, name := range resources {
				units[i] = used[name]
			}
			usual := fragmentation.Shape{GPUs: int(s.gpus), Part: fragmentation.Part{Memory: s.mib, Compute: s.percent}}
			all = append(all, shape{s, asked, roomFor(s, asked), units, usual})
		}
	}
	return all, nil
}

// roomFor returns the room that a pod needs on each of its GPUs.
func roomFor(s size, asked request.Pod) request.Room {
	r := request.Room{MiB: s.mib, Cores: s.percent}
	if asked.Containers[0].Shares[0].Exclusive {
		r.Percent = 100
	}
	return r
}

// container is the name of each pod's container.
const container = "main"
