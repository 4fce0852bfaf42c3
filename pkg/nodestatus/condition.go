// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// ConditionReady is the Node condition that reports whether the agent and all GPUs work.
// ConditionReady is for people and alerts: the scheduler ignores the condition.
const ConditionReady corev1.NodeConditionType = "VGPUReady"

// These constants are the reasons of the condition.
const (
	ReasonGPUsHealthy         = "GPUsHealthy"
	ReasonGPUUnhealthy        = "GPUUnhealthy"         // some GPUs get no new containers
	ReasonNoGPU               = "NoGPU"                // the driver no longer lists any GPU
	ReasonPluginNotRegistered = "PluginNotRegistered"  // the runtime does not call the agent
	ReasonUnadjusted          = "ContainersUnadjusted" // some containers run without their limits
	ReasonAgentAway           = "AgentAway"            // the agent's heartbeat is stale
)

// condition returns the condition of the agent and its GPUs, without times. condition returns nil,
// for no change, before the agent's first report and if the Node never had a GPU. condition also
// returns nil if it finds no problem, but the agent does not know the node's pods yet.
func condition(o Observation, node *corev1.Node, staleAfter time.Duration, now time.Time) *corev1.NodeCondition {
	newCondition := func(status corev1.ConditionStatus, reason, message string) *corev1.NodeCondition {
		return &corev1.NodeCondition{Type: ConditionReady, Status: status, Reason: reason, Message: message}
	}
	known := currentCondition(node) != nil
	switch {
	case o.Report == nil:
		return nil
	case len(o.Report.GPUs) == 0 && !known:
		return nil
	case o.Age(now) > staleAfter:
		return newCondition(corev1.ConditionFalse, ReasonAgentAway, "the agent does not report: check the state and the log of its pod")
	case !o.Report.PluginRegistered:
		return newCondition(corev1.ConditionFalse, ReasonPluginNotRegistered, "the NRI plugin is not registered with the container runtime: see the agent's log")
	case len(o.Report.GPUs) == 0:
		return newCondition(corev1.ConditionFalse, ReasonNoGPU, noGPU(o.Report.LeftOut))
	}
	if n := o.Report.Unadjusted; n > 0 {
		return newCondition(corev1.ConditionFalse, ReasonUnadjusted,
			fmt.Sprintf("containers that run without their limits: %d: delete the pods that the Events VGPUUnadjusted name", n))
	}
	if bad := unhealthy(o.Report.GPUs); len(bad) > 0 {
		return newCondition(corev1.ConditionFalse, ReasonGPUUnhealthy,
			fmt.Sprintf("%d of %d GPUs accept no new containers: %s", len(bad), len(o.Report.GPUs), strings.Join(bad, "; ")))
	}
	if o.Report.Sums == nil {
		return nil // the Node still offers its previous resources, if any
	}
	return newCondition(corev1.ConditionTrue, ReasonGPUsHealthy, fmt.Sprintf("GPUs that accept containers: %d", len(o.Report.GPUs)))
}

// noGPU returns why a node offers no GPU.
func noGPU(leftOut []gpu.GPU) string {
	for _, g := range leftOut {
		if g.Undivided {
			return fmt.Sprintf("nothing of GPU %s (%s) is offered: %s", g.Number(), g.UUID, g.Reason)
		}
	}
	return "the NVIDIA driver shows no GPU: see the agent's log"
}

func unhealthy(gpus []gpu.GPU) []string {
	var bad []string
	for _, g := range gpus {
		if !g.Healthy {
			bad = append(bad, fmt.Sprintf("GPU %s (%s): %s", g.Number(), g.UUID, g.Reason))
		}
	}
	return bad
}

func currentCondition(node *corev1.Node) *corev1.NodeCondition {
	k := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == ConditionReady })
	if k < 0 {
		return nil
	}
	return &node.Status.Conditions[k]
}

// changed returns the condition to write, with its times, or nil if the Node already has the
// condition. The condition has no periodic heartbeat, since each heartbeat would be a write.
func changed(node *corev1.Node, want *corev1.NodeCondition, now time.Time) *corev1.NodeCondition {
	have := currentCondition(node)
	switch {
	case want == nil:
		return nil
	case have != nil && have.Status == want.Status && have.Reason == want.Reason && have.Message == want.Message:
		return nil
	}
	c := *want
	c.LastHeartbeatTime, c.LastTransitionTime = metav1.NewTime(now), metav1.NewTime(now)
	if have != nil && have.Status == c.Status {
		c.LastTransitionTime = have.LastTransitionTime
	}
	return &c
}
