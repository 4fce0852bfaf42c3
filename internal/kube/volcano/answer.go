// SPDX-License-Identifier: Apache-2.0

package volcano

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// Answer returns the changes of a pod's annotations that report the result of the pod's assignment
// to the scheduler. The parameter held contains the allocations of the pod's containers, and failed
// reports whether the node refused a container. Answer returns nil if nothing changes.
func Answer(pod *corev1.Pod, cfg config.Volcano, held []placement.Allocation, failed bool) map[string]string {
	assignment, err := Parse(pod.Annotations[IDs])
	asking := Asking(pod, cfg)
	if !Assigned(pod) || err != nil || len(assignment) != len(asking) {
		if !failed {
			return nil
		}
		return differing(pod, map[string]string{Phase: Failed, Time: Answered})
	}
	left, all := slices.Clone(assignment), true
	for k, name := range asking {
		if has(held, name) {
			left[k] = nil
		}
		all = all && len(left[k]) == 0
	}
	want := map[string]string{ToAllocate: left.String()}
	switch {
	case failed:
		want[Phase], want[Time] = Failed, Answered
	case all:
		want[Phase], want[Time] = Success, Answered
	}
	return differing(pod, want)
}

func has(held []placement.Allocation, container string) bool {
	return slices.ContainsFunc(held, func(a placement.Allocation) bool {
		return a.Container == container && len(a.Devices) > 0
	})
}

// Announce returns the changes of a pod's annotations that make Volcano's scheduler count the pod's
// GPUs, if another scheduler placed the pod. Announce returns nil if nothing changes.
func Announce(pod *corev1.Pod, cfg config.Volcano, held []placement.Allocation) map[string]string {
	if len(held) == 0 {
		return nil
	}
	listed := Asking(pod, cfg)
	if len(listed) == 0 {
		for _, a := range held {
			listed = append(listed, a.Container)
		}
	}
	assignment := make(Assignment, len(listed))
	for k, name := range listed {
		for _, a := range held {
			if a.Container == name {
				assignment[k] = devicesOf(a)
			}
		}
	}
	return differing(pod, map[string]string{
		Node: pod.Spec.NodeName, IDs: assignment.String(), Phase: Success, Time: Answered,
	})
}

func devicesOf(a placement.Allocation) []Device {
	devices := make([]Device, len(a.Devices))
	for i, d := range a.Devices {
		cores := (d.ComputePPM + request.Whole/100 - 1) / (request.Whole / 100)
		if d.Exclusive {
			cores = 100
		}
		devices[i] = Device{UUID: d.UUID, Type: deviceType, MiB: d.MemoryBytes / request.MiB, Cores: cores}
	}
	return devices
}

func differing(pod *corev1.Pod, want map[string]string) map[string]string {
	changes := map[string]string{}
	for key, value := range want {
		if have, ok := pod.Annotations[key]; !ok || have != value {
			changes[key] = value
		}
	}
	if len(changes) == 0 {
		return nil
	}
	return changes
}

// BoundAt returns the time of a pod's assignment, by the scheduler's clock, in seconds; 0 for a pod
// without an assignment.
func BoundAt(pod *corev1.Pod) int64 {
	at, err := strconv.ParseInt(pod.Annotations[BindTime], 10, 64)
	if err != nil {
		return 0
	}
	return at
}

// Settled reports whether the node has answered for a pod.
func Settled(pod *corev1.Pod) bool {
	phase := pod.Annotations[Phase]
	return phase == Success || phase == Failed
}
