package events

import corev1 "k8s.io/api/core/v1"

// Reason is why an Event is written: its name, which alerts and
// `kubectl get events --field-selector reason=…` go by, whether somebody has
// to act on it, and what was being done. All reasons are declared here, and
// explained in docs/operations.md.
type Reason struct {
	Name   string
	Type   string
	Action string
}

// On Pods.
var (
	// VGPURefused: a container was not created or not started, and the note
	// says why; where it fits no GPU, what is free on each.
	VGPURefused = Reason{"VGPURefused", corev1.EventTypeWarning, "Refuse"}
	// VGPUEvicted: the pod fits no GPU of its node though the sum of them
	// did, and was evicted so that its controller makes another elsewhere.
	VGPUEvicted = Reason{"VGPUEvicted", corev1.EventTypeWarning, "Evict"}
	// VGPUNotEvicted: the pod fits no GPU of its node and stays there, as
	// nobody would make another or a disruption budget forbids it.
	VGPUNotEvicted = Reason{"VGPUNotEvicted", corev1.EventTypeWarning, "Evict"}
	// VGPUUnadjusted: a container runs that was created without the plugin
	// and asks for, or may see, GPUs.
	VGPUUnadjusted = Reason{"VGPUUnadjusted", corev1.EventTypeWarning, "Audit"}
	// VGPUStopped: a container that ran without its limits, or around them,
	// was stopped, as the configuration says.
	VGPUStopped = Reason{"VGPUStopped", corev1.EventTypeWarning, "Stop"}
	// VGPUUsageForged: a container holds more of a GPU than its usage page
	// reports, or than its limit; what the driver sees counts from then on.
	// Or it keeps that page from being read, or makes it grow.
	VGPUUsageForged = Reason{"VGPUUsageForged", corev1.EventTypeWarning, "Detect"}
	// VGPUMemoryLimitReached: a container's processes were refused memory at its
	// limit. They may have got by without it, or have failed.
	VGPUMemoryLimitReached = Reason{"VGPUMemoryLimitReached", corev1.EventTypeWarning, "Limit"}
)

// On Pods and on the Node.
var (
	// VGPUBypassed: a process uses a GPU that no container of ours accounts
	// for. It is on the Pod whose process it is, else on the Node.
	VGPUBypassed = Reason{"VGPUBypassed", corev1.EventTypeWarning, "Detect"}
)

// On the Node.
var (
	// GPUUnhealthy: a GPU takes no new containers, and the note says why.
	GPUUnhealthy = Reason{"GPUUnhealthy", corev1.EventTypeWarning, "Watch"}
	// GPURecovered: a GPU that was unhealthy takes containers again.
	GPURecovered = Reason{"GPURecovered", corev1.EventTypeNormal, "Watch"}
	// VGPUGuardNotLoaded: the runtime has yet to load the guard, so that
	// containers that are created while the agent is away are not isolated.
	VGPUGuardNotLoaded = Reason{"VGPUGuardNotLoaded", corev1.EventTypeWarning, "Watch"}
	// VGPUDriverNames: the driver exports names that this version does not know, and
	// the note says which are refused; or the driver's library could not be read.
	VGPUDriverNames = Reason{"VGPUDriverNames", corev1.EventTypeWarning, "Watch"}
	// MPSUnavailable: the control daemon of the Multi-Process Service does not
	// run, and the note says why; containers on its GPUs are refused.
	MPSUnavailable = Reason{"MPSUnavailable", corev1.EventTypeWarning, "Supervise"}
	// MPSRecovered: it runs again.
	MPSRecovered = Reason{"MPSRecovered", corev1.EventTypeNormal, "Supervise"}
)
