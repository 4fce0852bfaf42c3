// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/finding"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/fleet"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/why"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

const (
	// muchHeld is the least throttled time that is reported, in seconds of thread time per second.
	muchHeld = 0.05
	// nearLimit is the fraction of its limit from which a container counts as at
	// its limit.
	nearLimit = 0.9
)

// makes are the reasons of containers that kubelet is making.
var makes = []string{"", "ContainerCreating", "PodInitializing"}

// Pod contains the facts about a pod.
type Pod struct {
	Pod    *corev1.Pod
	Events []corev1.Event
	Nodes  []corev1.Node
	// Before and After are two observations of the pod's node, a moment apart.
	// If the pod waits, the observations cover nodes until a node could run the pod.
	Before, After []agentapi.Overview
	// Agents is the number of agents that could be observed.
	Agents int
	// Asked is the request of the pod. Invalid is the error in the request.
	Asked   request.Pod
	Invalid error
	// SpecInvalid reports whether the error is in the spec, and not in an annotation.
	SpecInvalid bool
	// Unknown is the error if agents could not be queried.
	Unknown error
	Now     time.Time
}

// Findings returns the problems of the pod, with their fixes.
func (p Pod) Findings() []finding.Finding {
	var all []finding.Finding
	asked := askedByPod(p.Pod, p.Nodes)
	if len(asked) == 0 {
		return []finding.Finding{fine("request", "the pod requests no part of a GPU: no limit of its containers names a resource of %s", strings.Join(p.offers(), ", "))}
	}
	ended := p.Pod.Status.Phase == corev1.PodSucceeded || p.Pod.Status.Phase == corev1.PodFailed
	switch {
	case ended:
	case p.Invalid != nil:
		all = append(all, problem("request", p.fixInvalid(), "no node starts the pod: %v", p.Invalid))
	case p.Pod.Spec.NodeName == "":
		all = append(all, p.unscheduled(asked)...)
	}
	all = append(all, p.refused()...)
	all = append(all, p.fromEvents()...)
	if !slices.ContainsFunc(all, func(f finding.Finding) bool { return f.Level == finding.Problem }) {
		all = append(all, p.kubelet()...)
	}
	all = append(all, p.held()...)
	all = append(all, p.node()...)
	if p.Unknown != nil {
		all = append(all, warning("agents", "kubectl vgpu doctor", "some agents did not answer: %v", p.Unknown))
	}
	if len(all) == 0 {
		switch {
		case ended:
			return []finding.Finding{fine("pod", "the pod has ended: %s", p.Pod.Status.Phase)}
		case p.Pod.Status.Phase == corev1.PodPending:
			return []finding.Finding{fine("pod", "the pod has a node, and the runtime creates its containers")}
		}
		return []finding.Finding{fine("pod", "the pod has what it requests, and no limit throttles it")}
	}
	return all
}

// offers returns the names of all resources that nri-vgpu advertises on any node.
func (p Pod) offers() []string {
	names := map[string]bool{}
	for i := range p.Nodes {
		for _, name := range offered(&p.Nodes[i]) {
			names[name] = true
		}
	}
	if len(names) == 0 {
		return []string{"nri-vgpu's resources (no node has any)"}
	}
	return slices.Sorted(maps.Keys(names))
}

// unscheduled returns why no node accepts the pod.
func (p Pod) unscheduled(asked map[string]int64) []finding.Finding {
	var all []finding.Finding
	reason := "the scheduler has not tried the pod yet"
	for _, c := range p.Pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			reason = show.OneLine(c.Message)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		if f, short := p.short(name, asked[name]); short {
			all = append(all, f)
		}
	}
	if never := why.Never(p.Asked, p.everywhere()); never != "" && len(all) == 0 {
		all = append(all, problem("request", why.NeverAdvice, "no node can ever start the pod: %s", never))
	}
	if len(all) == 0 {
		all = append(all, problem("scheduling", p.makeRoom(), "no node accepts the pod: %s", reason))
	} else {
		all = append(all, warning("scheduling", "", "the scheduler reports: %s", reason))
	}
	for i := range p.Nodes {
		if c := condition(&p.Nodes[i], ready); c != nil && c.Status != corev1.ConditionTrue {
			all = append(all, warning("node", "kubectl vgpu doctor "+p.Nodes[i].Name, "node %s: %s", p.Nodes[i].Name, show.OneLine(c.Message)))
		}
	}
	return all
}

// short returns a finding if no node, even an empty node, has the wanted amount of a resource.
func (p Pod) short(name string, want int64) (finding.Finding, bool) {
	most, where := int64(0), ""
	for i := range p.Nodes {
		amount, ok := p.Nodes[i].Status.Allocatable[corev1.ResourceName(name)]
		if ok && amount.Value() > most {
			most, where = amount.Value(), p.Nodes[i].Name
		}
	}
	switch {
	case where == "":
		return problem("request", "run kubectl vgpu doctor; check the resource's name, and that config.toml enables its dialect",
			"no node has any %s, of which the pod requests %d", name, want), true
	case want > most:
		return problem("request", fmt.Sprintf("request at most %d, or add a node with more", most),
			"the pod requests %d of %s, and the largest node has %d (%s)", want, name, most, where), true
	}
	return finding.Finding{}, false
}

// everywhere returns the GPUs of all nodes, or nothing if some are not known.
func (p Pod) everywhere() [][]placement.Room {
	if p.Unknown != nil {
		return nil
	}
	return slices.Collect(maps.Values(why.Rooms(p.After)))
}

// here returns the overviews of the pod's node, or of all nodes if the pod has no node.
func (p Pod) here() []agentapi.Overview {
	if p.Pod.Spec.NodeName == "" {
		return p.After
	}
	return slices.DeleteFunc(slices.Clone(p.After), func(o agentapi.Overview) bool { return o.Node != p.Pod.Spec.NodeName })
}

// fixRefusal returns what to do about a refusal with this message.
func (p Pod) fixRefusal(message string) string {
	switch {
	case strings.Contains(message, "guard refuses"):
		return "kubectl vgpu doctor " + p.Pod.Spec.NodeName + ": the node's agent does not answer; the container starts when the agent answers"
	case !strings.Contains(message, "no GPU has room"):
		return advice["VGPURefused"]
	}
	if never := why.Never(p.Asked, p.everywhere()); never != "" {
		return never + ". " + why.NeverAdvice
	}
	if never := why.Never(p.Asked, slices.Collect(maps.Values(why.Rooms(p.here())))); never != "" {
		return fmt.Sprintf("%s on node %s. Another node has such a GPU: delete the pod, so that its controller creates another pod", never, p.Pod.Spec.NodeName)
	}
	return p.makeRoom()
}

// makeRoom describes the GPUs with the most free memory, and the pods that hold
// the rest.
func (p Pod) makeRoom() string {
	text := p.freeNow() + "; wait, request less, or delete one of "
	type holder struct {
		name  string
		bytes uint64
	}
	var holders []holder
	for _, o := range p.here() {
		for _, c := range o.Containers {
			h := holder{name: c.Namespace + "/" + c.Pod}
			for _, s := range c.GPUs {
				h.bytes += s.MemoryLimitBytes
			}
			holders = append(holders, h)
		}
	}
	if len(holders) == 0 {
		return p.freeNow() + "; check the scheduler's other reasons: selectors, taints, CPU, memory"
	}
	slices.SortStableFunc(holders, func(a, b holder) int { return cmp.Compare(b.bytes, a.bytes) })
	var names []string
	for _, h := range holders[:min(len(holders), maxRooms)] {
		names = append(names, fmt.Sprintf("%s (%d MiB)", h.name, h.bytes>>20))
	}
	return text + strings.Join(names, ", ")
}

// freeNow describes the free capacity of the queried nodes.
func (p Pod) freeNow() string {
	free := describeRooms(rooms(p.here()))
	if p.Pod.Spec.NodeName != "" || len(p.After) >= p.Agents {
		return "free now: " + free
	}
	return fmt.Sprintf("free now on %d of %d nodes (kubectl vgpu why shows all): %s", len(p.After), p.Agents, free)
}

// refused returns the containers that the runtime did not create, with the
// reasons.
func (p Pod) refused() []finding.Finding {
	var all []finding.Finding
	for _, s := range slices.Concat(p.Pod.Status.InitContainerStatuses, p.Pod.Status.ContainerStatuses) {
		w := s.State.Waiting
		if w == nil || !strings.Contains(w.Message, "nri-vgpu") {
			continue
		}
		all = append(all, problem("refused", p.fixRefusal(w.Message), "container %s is refused: %s", s.Name, ownWords(w.Message)))
	}
	return all
}

// ownWords removes the prefixes of the runtime and the kubelet from an error of
// nri-vgpu.
func ownWords(message string) string {
	message = show.OneLine(message)
	if k := strings.Index(message, "nri-vgpu refuses"); k >= 0 {
		message = message[k:]
		if _, why, ok := strings.Cut(message, ": "); ok {
			return why
		}
	}
	return message
}

// fixInvalid returns what to do about an invalid request. A pod's resources never change, but its
// annotations may.
func (p Pod) fixInvalid() string {
	if p.SpecInvalid {
		return "correct the resource limits of the spec, and recreate the pod: the resources of a pod cannot change"
	}
	return "correct or remove the annotation; kubelet retries"
}

// kubelet returns what kubelet reports of containers that wait for another reason than nri-vgpu.
func (p Pod) kubelet() []finding.Finding {
	var all []finding.Finding
	for _, s := range slices.Concat(p.Pod.Status.InitContainerStatuses, p.Pod.Status.ContainerStatuses) {
		w := s.State.Waiting
		if w == nil || slices.Contains(makes, w.Reason) || strings.Contains(w.Message, "nri-vgpu") {
			continue
		}
		text := strings.TrimSuffix(w.Reason+": "+show.OneLine(w.Message), ": ")
		if ended := s.LastTerminationState.Terminated; ended != nil {
			text += fmt.Sprintf("; the container's last exit status is %d (%s)", ended.ExitCode, ended.Reason)
		}
		all = append(all, problem("container", fmt.Sprintf("the cause is not nri-vgpu: kubectl describe pod -n %[1]s %[2]s; kubectl logs -n %[1]s %[2]s -c %[3]s --previous", p.Pod.Namespace, p.Pod.Name, s.Name),
			"kubelet reports of container %s: %s", s.Name, text))
	}
	return all
}

// fromEvents returns the findings of Events that still apply.
func (p Pod) fromEvents() []finding.Finding {
	waits := slices.ContainsFunc(p.Pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.State.Running == nil && s.State.Terminated == nil })
	kubelet := len(p.refused()) > 0
	var all []finding.Finding
	for _, e := range latest(p.Events) {
		if slices.Contains(good, e.Reason) || e.Reason == "VGPUMemoryLimitReached" && p.full() {
			continue
		}
		if e.Reason == "VGPURefused" {
			if !waits || kubelet {
				continue // the problem is over, or the kubelet reports the same
			}
			all = append(all, problem("refused", p.fixRefusal(e.Message), "refused %d times, last %s: %s", times(e), ago(p.Now, fleet.LastSeen(e).Time), show.OneLine(e.Message)))
			continue
		}
		all = append(all, warning("event", advice[e.Reason], "%s, %s: %s", e.Reason, ago(p.Now, fleet.LastSeen(e).Time), show.OneLine(e.Message)))
	}
	return all
}

// full reports whether the account of a container of the pod counts refused
// allocations.
func (p Pod) full() bool {
	own, _ := p.containers(p.After)
	return slices.ContainsFunc(own, func(c agentapi.Container) bool {
		return slices.ContainsFunc(c.GPUs, func(s agentapi.Share) bool { return s.Account != nil && s.Account.Refusals > 0 })
	})
}

// node returns a finding if the pod's node is not ready for GPU containers.
func (p Pod) node() []finding.Finding {
	for i := range p.Nodes {
		if p.Nodes[i].Name != p.Pod.Spec.NodeName {
			continue
		}
		if c := condition(&p.Nodes[i], ready); c != nil && c.Status != corev1.ConditionTrue {
			return []finding.Finding{warning("node", "kubectl vgpu doctor "+p.Nodes[i].Name, "its node %s: %s", p.Nodes[i].Name, show.OneLine(c.Message))}
		}
	}
	return nil
}
