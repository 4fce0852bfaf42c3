// SPDX-License-Identifier: Apache-2.0

package events

import corev1 "k8s.io/api/core/v1"

// Reason is the reason of an Event. Alerts and `kubectl get events --field-selector reason=…`
// select by Name. Type states whether the Event needs action, and Action names the agent's
// activity. All reasons are declared here, and explained in docs/how-to/debug.md.
type Reason struct {
	Name   string
	Type   string
	Action string
}

// These reasons are used on Pods.
var (
	// VGPURefused means that a container was not created or not started. The note contains the
	// reason; if the container fits no GPU, the note lists the free capacity of each GPU.
	VGPURefused = Reason{"VGPURefused", corev1.EventTypeWarning, "Refuse"}
	// VGPUEvicted means that the pod fits no single GPU of its node, though it fits the sum of the
	// GPUs. The pod was evicted so that its controller creates another pod elsewhere.
	VGPUEvicted = Reason{"VGPUEvicted", corev1.EventTypeWarning, "Evict"}
	// VGPUNotEvicted means that the pod fits no GPU of its node and stays there. Either no
	// controller would create another pod, or a disruption budget forbids the eviction.
	VGPUNotEvicted = Reason{"VGPUNotEvicted", corev1.EventTypeWarning, "Evict"}
	// VGPUUnadjusted means that a running container was created without the plugin, and asks for,
	// or may see, GPUs.
	VGPUUnadjusted = Reason{"VGPUUnadjusted", corev1.EventTypeWarning, "Audit"}
	// VGPUStopped means that a container that ran without its limits, or around them, was stopped,
	// as the configuration requests.
	VGPUStopped = Reason{"VGPUStopped", corev1.EventTypeWarning, "Stop"}
	// VGPUUsageForged means that a container holds more of a GPU than its usage page reports, or
	// than its limit; the driver's measurement counts from then on. Or the container keeps that
	// page from being read, or grows it.
	VGPUUsageForged = Reason{"VGPUUsageForged", corev1.EventTypeWarning, "Detect"}
	// VGPUMemoryLimitReached means that a container's processes were refused memory at its limit.
	// The processes may have continued without the memory, or have failed.
	VGPUMemoryLimitReached = Reason{"VGPUMemoryLimitReached", corev1.EventTypeWarning, "Limit"}
	// VGPUResized means that a running container's parts of its GPUs have the requested sizes.
	VGPUResized = Reason{"VGPUResized", corev1.EventTypeNormal, "Resize"}
	// VGPUNotResized means that the requested sizes are not in force, and the note contains the reason.
	VGPUNotResized = Reason{"VGPUNotResized", corev1.EventTypeWarning, "Resize"}
)

// This reason is used on Pods and on the Node.
var (
	// VGPUBypassed means that a process uses a GPU that no container of ours accounts for. The
	// Event is on the process's Pod, or else on the Node.
	VGPUBypassed = Reason{"VGPUBypassed", corev1.EventTypeWarning, "Detect"}
)

// These reasons are used on the Node.
var (
	// GPUUnhealthy means that a GPU takes no new containers, and the note contains the reason.
	GPUUnhealthy = Reason{"GPUUnhealthy", corev1.EventTypeWarning, "Watch"}
	// GPURecovered means that an unhealthy GPU became healthy and accepts containers again.
	GPURecovered = Reason{"GPURecovered", corev1.EventTypeNormal, "Watch"}
	// VGPUGuardNotLoaded means that the runtime has not loaded the guard yet, so that containers
	// that are created while the agent is away are not isolated.
	VGPUGuardNotLoaded = Reason{"VGPUGuardNotLoaded", corev1.EventTypeWarning, "Watch"}
	// VGPUDriverNames means that the driver exports names that this version does not know, or the
	// driver's library could not be read. The note lists the refused names.
	VGPUDriverNames = Reason{"VGPUDriverNames", corev1.EventTypeWarning, "Watch"}
	// MPSUnavailable means that the control daemon of the Multi-Process Service does not run, and
	// the note contains the reason. Containers on its GPUs are refused.
	MPSUnavailable = Reason{"MPSUnavailable", corev1.EventTypeWarning, "Supervise"}
	// MPSRecovered means that the control daemon of the Multi-Process Service runs again.
	MPSRecovered = Reason{"MPSRecovered", corev1.EventTypeNormal, "Supervise"}
)
