// SPDX-License-Identifier: Apache-2.0

package events

import corev1 "k8s.io/api/core/v1"

// Reason is the reason of an Event. Alerts and `kubectl get events --field-selector reason=…`
// select by Name. Type states whether the Event needs action, and Action names the agent's
// activity. This file declares all reasons, and docs/how-to/debug.md explains them.
type Reason struct {
	Name   string
	Type   string
	Action string
}

// These reasons are used on Pods.
var (
	// VGPURefused means that a container was not created or not started. The note contains the
	// cause. If the container fits no GPU, the note lists the free capacity of each GPU.
	VGPURefused = Reason{"VGPURefused", corev1.EventTypeWarning, "Refuse"}
	// VGPUEvicted means that the pod fits no single GPU of its node, though it fits the sum of the
	// GPUs. The agent evicted the pod so that the pod's controller creates another pod on another
	// node.
	VGPUEvicted = Reason{"VGPUEvicted", corev1.EventTypeWarning, "Evict"}
	// VGPUNotEvicted means that the pod fits no GPU of its node, and that the agent does not evict
	// it. Either no controller would create another pod, or a disruption budget forbids the
	// eviction.
	VGPUNotEvicted = Reason{"VGPUNotEvicted", corev1.EventTypeWarning, "Evict"}
	// VGPUUnadjusted means that a running container was created without the plugin, and requests
	// GPUs or may see GPUs.
	VGPUUnadjusted = Reason{"VGPUUnadjusted", corev1.EventTypeWarning, "Audit"}
	// VGPUStopped means that the agent stopped a container that ran without its limits, or bypassed
	// its limits. The configuration requests the stop.
	VGPUStopped = Reason{"VGPUStopped", corev1.EventTypeWarning, "Stop"}
	// VGPUUsageForged means that a container holds more of a GPU than its usage page reports, or
	// than its limit. From then on, the driver's measurement counts. VGPUUsageForged also means
	// that the container prevents the agent from reading the usage page, or grows the page.
	VGPUUsageForged = Reason{"VGPUUsageForged", corev1.EventTypeWarning, "Detect"}
	// VGPUMemoryLimitReached means that a container's processes were refused memory at the
	// container's limit. The processes may have continued without the memory, or have failed.
	VGPUMemoryLimitReached = Reason{"VGPUMemoryLimitReached", corev1.EventTypeWarning, "Limit"}
	// VGPUResized means that a running container's parts of its GPUs have the requested sizes.
	VGPUResized = Reason{"VGPUResized", corev1.EventTypeNormal, "Resize"}
	// VGPUNotResized means that the requested sizes are not in force, and the note contains the reason.
	VGPUNotResized = Reason{"VGPUNotResized", corev1.EventTypeWarning, "Resize"}
)

// This reason is used on Pods and on the Node.
var (
	// VGPUBypassed means that a process uses a GPU outside of its container's allocation, or that a
	// container lost the files that enforce its limits. The Event is on the Pod, or on the Node if
	// the agent knows no pod of the process.
	VGPUBypassed = Reason{"VGPUBypassed", corev1.EventTypeWarning, "Detect"}
)

// These reasons are used on the Node.
var (
	// GPUUnhealthy means that a GPU accepts no new containers. The note contains the cause.
	GPUUnhealthy = Reason{"GPUUnhealthy", corev1.EventTypeWarning, "Watch"}
	// GPURecovered means that an unhealthy GPU became healthy and accepts containers again.
	GPURecovered = Reason{"GPURecovered", corev1.EventTypeNormal, "Watch"}
	// VGPUGuardNotLoaded means that the runtime has not loaded the guard yet. Containers that are
	// created while the agent is down are therefore not isolated.
	VGPUGuardNotLoaded = Reason{"VGPUGuardNotLoaded", corev1.EventTypeWarning, "Watch"}
	// VGPUDriverNames means that the driver exports names that this version does not know, or that
	// the agent could not read the driver's library. The note lists the refused names.
	VGPUDriverNames = Reason{"VGPUDriverNames", corev1.EventTypeWarning, "Watch"}
	// MPSUnavailable means that the control daemon of the Multi-Process Service does not run. The
	// note contains the cause. The agent refuses containers on the daemon's GPUs.
	MPSUnavailable = Reason{"MPSUnavailable", corev1.EventTypeWarning, "Supervise"}
	// MPSRecovered means that the control daemon of the Multi-Process Service runs again.
	MPSRecovered = Reason{"MPSRecovered", corev1.EventTypeNormal, "Supervise"}
)
