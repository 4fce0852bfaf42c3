// SPDX-License-Identifier: Apache-2.0

// Package nodestatus is the patcher, which advertises a node's GPU capacity on the Node object as
// extended resources. When other writers change the capacity, the patcher restores it. Pure
// functions decide what to advertise (Desired) and what to write (Plan). The loop around these
// functions (Patcher) reads node.json and calls the API server. The package does not depend on the
// way in which the agent finds GPUs.
package nodestatus

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// Observation is the patcher's view of the agent.
type Observation struct {
	// Report is the last readable report; nil before the first report.
	Report *nodereport.Report
	// Alive is the last time at which the agent was known to be alive, by the monotonic clock: the
	// wall clock may jump.
	Alive time.Time
	// Newer reports whether the report has the format of a newer release. The patcher then knows
	// only the report's heartbeat.
	Newer bool
}

// Age returns the time since the agent was last known to be alive.
func (o Observation) Age(now time.Time) time.Duration { return now.Sub(o.Alive) }

// Resources maps resource names to units. The patcher does not advertise an absent name; 0 is never
// a value.
type Resources map[string]int64

// Desired returns the resources that a Node with the given labels must advertise. The second result
// is the reason for empty resources, for the log, or "".
func Desired(o Observation, cfg config.Config, labels map[string]string, staleAfter time.Duration, now time.Time) (Resources, string) {
	switch {
	case o.Report == nil:
		return nil, "the agent has not reported"
	case o.Age(now) > staleAfter:
		return nil, fmt.Sprintf("the agent's last heartbeat is more than %s old", staleAfter)
	case !o.Report.PluginRegistered:
		return nil, "the NRI plugin is not registered with the runtime"
	case o.Report.Sums == nil:
		return nil, "the agent does not know the node's pods yet"
	}
	sums := *o.Report.Sums
	if cfg.Scheduling.ByPlugin() {
		sums.Free = unused(o.Report.GPUs, sums, cfg)
	}
	if !config.Labelled(labels, cfg.Dialects.AWS.NodeLabel) {
		sums.Free = maps.Clone(sums.Free)
		delete(sums.Free, cfg.Dialects.AWS.Slots)
	}
	desired := capacity(o.Report.GPUs, sums, cfg)
	if len(desired) == 0 {
		return nil, "the node has no GPU to offer"
	}
	return desired, ""
}

// undecided reports whether the agent is alive, but either does not know the node's pods yet or has
// a newer release. The patcher must not change the resources while undecided is true.
func undecided(o Observation, staleAfter time.Duration, now time.Time) bool {
	return notUnderstood(o, staleAfter, now) ||
		o.Report != nil && o.Age(now) <= staleAfter && o.Report.PluginRegistered && o.Report.Sums == nil
}

// notUnderstood reports whether the agent is alive and has a newer release.
func notUnderstood(o Observation, staleAfter time.Duration, now time.Time) bool {
	return o.Newer && o.Age(now) <= staleAfter
}

// capacity returns the sum of the usage of a dialect's own pods and the remaining capacity in its
// units. The scheduler subtracts the usage, and gets the capacity that pods of all dialects leave.
// The sum is never less than the usage: a restarting kubelet admits the pods again, and fails pods
// that do not fit. The sum exceeds the GPUs' capacity only if the usage exceeds the capacity.
func capacity(gpus []gpu.GPU, sums nodereport.Sums, cfg config.Config) Resources {
	desired := Resources{}
	for name, whole := range request.Capacity(asHealthy(gpus), cfg) {
		used := sums.Used[name]
		if units := max(used, min(used+sums.Free[name], whole)); units > 0 {
			desired[name] = units
		}
	}
	keepVolcano(desired, cfg.Dialects.Volcano)
	offerPriorities(desired, sums.Used, cfg.Dialects.HAMi)
	turns := sums.Used[request.FitTurn]
	if len(desired) > 0 && fits(sums, cfg) && !sums.Fit.Closed {
		turns++
	}
	if turns > 0 {
		desired[request.FitTurn] = turns
	}
	return desired
}

// fits reports whether the Node has labels with the free capacity of its single GPUs. An agent in
// another mode reports no labels.
func fits(sums nodereport.Sums, cfg config.Config) bool {
	return cfg.Scheduling.Fit() && sums.Fit != nil
}

// desiredLabels returns the labels that a Node must have beside the desired resources.
func desiredLabels(o Observation, cfg config.Config, desired Resources) map[string]string {
	if len(desired) == 0 || !fits(*o.Report.Sums, cfg) {
		return nil
	}
	labels := map[string]string{request.FitLabel: "true"}
	for name, value := range o.Report.Sums.Fit.Labels {
		if isFitLabel(name) {
			labels[name] = value
		}
	}
	return labels
}

// unused returns the capacity of the healthy GPUs less the usage of each dialect's own pods. Usage
// by other dialects does not change the result, since nri-vgpu-scheduler knows the usage of each
// GPU. Therefore the end of a pod does not raise the sums of other dialects. After a raise, kubelet
// would refuse pods until it has read the new sums. The result is at least the free capacity. Pods on
// an unhealthy GPU thus take no capacity of the healthy GPUs.
func unused(gpus []gpu.GPU, sums nodereport.Sums, cfg config.Config) map[string]int64 {
	free := request.Capacity(gpus, cfg)
	for name := range free {
		free[name] = max(free[name]-sums.Used[name], sums.Free[name])
	}
	return free
}

func asHealthy(gpus []gpu.GPU) []gpu.GPU {
	all := slices.Clone(gpus)
	for i := range all {
		all[i].Healthy = true
	}
	return all
}

// keepVolcano sets each of Volcano's three resources to at least one unit if the node advertises
// any of the three. Volcano's scheduler treats a node that lacks one of the resources as a node
// without GPUs.
func keepVolcano(desired Resources, v config.Volcano) {
	names := []string{v.Number, v.Memory, v.Cores}
	if !v.Enabled || !slices.ContainsFunc(names, func(name string) bool { return desired[name] > 0 }) {
		return
	}
	for _, name := range names {
		desired[name] = max(desired[name], 1)
	}
}

// priorities is the least amount of HAMi's priority that a Node offers beside the use of its pods. A
// scheduler therefore binds no pod with more than two such amounts, and 4000 of these pods fit in 63
// bits. Other pods never use up the amount.
const priorities = 1_000_000_000_000_000

// offerPriorities sets HAMi's priority, which is no amount of anything, to an amount that limits no pod.
// The amount is a multiple of priorities, so that it does not change with the pods of the Node.
func offerPriorities(desired Resources, used map[string]int64, h config.HAMi) {
	if n := used[h.Priority]; h.Enabled && (n > 0 || desired[h.Number] > 0) {
		desired[h.Priority] = max(n, min(n/priorities+2, math.MaxInt64/priorities)*priorities)
	}
}

// planGPUs adds the necessary change of the annotation that lists the GPUs for nri-vgpu-scheduler;
// nil removes the annotation. The patcher writes the annotation together with the resources.
func planGPUs(node *corev1.Node, o Observation, desired Resources, cfg config.Config, changes map[string]*string) {
	have, has := node.Annotations[assign.GPUsAnnotation]
	switch {
	case cfg.Scheduling.ByPlugin() && len(desired) > 0:
		if want := assign.FormatGPUs(o.Report.GPUs); want != have {
			changes[assign.GPUsAnnotation] = &want
		}
	case has:
		changes[assign.GPUsAnnotation] = nil
	}
}
