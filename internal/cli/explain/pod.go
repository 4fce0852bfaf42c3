// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/doctor"
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
	// If the pod waits, the observations cover so many nodes that one could run the pod.
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
func (p Pod) Findings() []doctor.Finding {
	var all []doctor.Finding
	asked := askedByPod(p.Pod, p.Nodes)
	if len(asked) == 0 {
		return []doctor.Finding{fine("request", "it asks for no part of a GPU, and gets none: no limit of its containers names one of %s", strings.Join(p.offers(), ", "))}
	}
	ended := p.Pod.Status.Phase == corev1.PodSucceeded || p.Pod.Status.Phase == corev1.PodFailed
	switch {
	case ended:
	case p.Invalid != nil:
		all = append(all, problem("request", p.fixInvalid(), "no node starts it: %v", p.Invalid))
	case p.Pod.Spec.NodeName == "":
		all = append(all, p.unscheduled(asked)...)
	}
	all = append(all, p.refused()...)
	all = append(all, p.told()...)
	if !slices.ContainsFunc(all, func(f doctor.Finding) bool { return f.Level == doctor.Problem }) {
		all = append(all, p.kubelet()...)
	}
	all = append(all, p.held()...)
	all = append(all, p.node()...)
	if p.Unknown != nil {
		all = append(all, warning("agents", "kubectl vgpu doctor", "not all is known: %v", p.Unknown))
	}
	if len(all) == 0 {
		switch {
		case ended:
			return []doctor.Finding{fine("pod", "it has ended: %s", p.Pod.Status.Phase)}
		case p.Pod.Status.Phase == corev1.PodPending:
			return []doctor.Finding{fine("pod", "it has a node, and its containers are being made")}
		}
		return []doctor.Finding{fine("pod", "it has what it asks for, and is not held back")}
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
func (p Pod) unscheduled(asked map[string]int64) []doctor.Finding {
	var all []doctor.Finding
	said := "the scheduler has not looked at it yet"
	for _, c := range p.Pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			said = oneLine(c.Message)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		if f, short := p.short(name, asked[name]); short {
			all = append(all, f)
		}
	}
	if never := why.Never(p.Asked, p.everywhere()); never != "" && len(all) == 0 {
		all = append(all, problem("request", why.NeverAdvice, "no node can ever start it: %s", never))
	}
	if len(all) == 0 {
		all = append(all, problem("scheduling", p.makeRoom(), "no node takes it: %s", said))
	} else {
		all = append(all, warning("scheduling", "", "the scheduler reports: %s", said))
	}
	for i := range p.Nodes {
		if c := condition(&p.Nodes[i], ready); c != nil && c.Status != corev1.ConditionTrue {
			all = append(all, warning("node", "kubectl vgpu doctor "+p.Nodes[i].Name, "node %s: %s", p.Nodes[i].Name, oneLine(c.Message)))
		}
	}
	return all
}

// short returns a finding if no node, even an empty node, has the wanted amount of a resource.
func (p Pod) short(name string, want int64) (doctor.Finding, bool) {
	most, where := int64(0), ""
	for i := range p.Nodes {
		amount, ok := p.Nodes[i].Status.Allocatable[corev1.ResourceName(name)]
		if ok && amount.Value() > most {
			most, where = amount.Value(), p.Nodes[i].Name
		}
	}
	switch {
	case where == "":
		return problem("request", "kubectl vgpu doctor; is the resource's dialect enabled in config.toml, and its name spelled so?",
			"no node has any %s, of which it asks for %d", name, want), true
	case want > most:
		return problem("request", fmt.Sprintf("ask for at most %d, or add a node with more", most),
			"it asks for %d of %s, and the most that a node has in all is %d (%s)", want, name, most, where), true
	}
	return doctor.Finding{}, false
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
		return "kubectl vgpu doctor " + p.Pod.Spec.NodeName + ": the agent there does not answer; the container is made when it does"
	case !strings.Contains(message, "no GPU has room"):
		return advice["VGPURefused"]
	}
	if never := why.Never(p.Asked, p.everywhere()); never != "" {
		return never + ". " + why.NeverAdvice
	}
	if never := why.Never(p.Asked, slices.Collect(maps.Values(why.Rooms(p.here())))); never != "" {
		return fmt.Sprintf("%s on node %s. Another node has such a GPU: delete the pod, so that its controller makes another", never, p.Pod.Spec.NodeName)
	}
	return p.makeRoom()
}

// makeRoom describes the GPUs with the most free memory, and the pods that hold
// the rest.
func (p Pod) makeRoom() string {
	text := p.freeNow() + "; wait, ask for less, or delete one of "
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
		return p.freeNow() + "; see what else the scheduler reports: selectors, taints, CPU, memory"
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
func (p Pod) refused() []doctor.Finding {
	var all []doctor.Finding
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
	message = oneLine(message)
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
	return "correct or remove the annotation; kubelet tries again by itself"
}

// kubelet returns what kubelet reports of containers that wait for another reason than nri-vgpu.
func (p Pod) kubelet() []doctor.Finding {
	var all []doctor.Finding
	for _, s := range slices.Concat(p.Pod.Status.InitContainerStatuses, p.Pod.Status.ContainerStatuses) {
		w := s.State.Waiting
		if w == nil || slices.Contains(makes, w.Reason) || strings.Contains(w.Message, "nri-vgpu") {
			continue
		}
		text := strings.TrimSuffix(w.Reason+": "+oneLine(w.Message), ": ")
		if ended := s.LastTerminationState.Terminated; ended != nil {
			text += fmt.Sprintf("; it ended with status %d (%s)", ended.ExitCode, ended.Reason)
		}
		all = append(all, problem("container", fmt.Sprintf("this is not about GPUs: kubectl describe pod -n %[1]s %[2]s; kubectl logs -n %[1]s %[2]s -c %[3]s --previous", p.Pod.Namespace, p.Pod.Name, s.Name),
			"kubelet reports of container %s: %s", s.Name, text))
	}
	return all
}

// told returns the findings of Events that still apply.
func (p Pod) told() []doctor.Finding {
	waits := slices.ContainsFunc(p.Pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.State.Running == nil && s.State.Terminated == nil })
	kubelet := len(p.refused()) > 0
	var all []doctor.Finding
	for _, e := range latest(p.Events) {
		if slices.Contains(good, e.Reason) || e.Reason == "VGPUMemoryLimitReached" && p.full() {
			continue
		}
		if e.Reason == "VGPURefused" {
			if !waits || kubelet {
				continue // the problem is over, or the kubelet reports the same
			}
			all = append(all, problem("refused", p.fixRefusal(e.Message), "refused %d times, last %s: %s", times(e), ago(p.Now, fleet.LastSeen(e).Time), oneLine(e.Message)))
			continue
		}
		all = append(all, warning("event", advice[e.Reason], "%s, %s: %s", e.Reason, ago(p.Now, fleet.LastSeen(e).Time), oneLine(e.Message)))
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

// containers returns the pod's containers in an observation, and its time.
func (p Pod) containers(all []agentapi.Overview) (own []agentapi.Container, at time.Time) {
	for _, o := range all {
		for _, c := range o.Containers {
			if c.Namespace == p.Pod.Namespace && c.Pod == p.Pod.Name {
				own, at = append(own, c), o.At
			}
		}
	}
	return own, at
}

// held returns findings about the pod's GPUs: reached limits, limits that may not hold, and
// unhealthy GPUs.
func (p Pod) held() []doctor.Finding {
	before, began := p.containers(p.Before)
	after, ended := p.containers(p.After)
	var all []doctor.Finding
	for _, c := range after {
		for _, s := range c.GPUs {
			all = append(all, atMemoryLimit(c, s)...)
			all = append(all, metered(c, s)...)
			all = append(all, throttled(c, s, earlier(before, c, s), ended.Sub(began))...)
			if s.Unhealthy != "" {
				all = append(all, problem("gpu", "delete the pod to have it placed anew; on the node: nvidia-smi -q -i "+s.UUID,
					"container %s is on GPU %d, which is unhealthy: %s", c.Container, s.Index, s.Unhealthy))
			}
		}
	}
	return all
}

func earlier(before []agentapi.Container, c agentapi.Container, s agentapi.Share) *agentapi.Account {
	for _, b := range before {
		for _, had := range b.GPUs {
			if b.PodUID == c.PodUID && b.Container == c.Container && had.UUID == s.UUID {
				return had.Account
			}
		}
	}
	return nil
}

func atMemoryLimit(c agentapi.Container, s agentapi.Share) []doctor.Finding {
	if s.Account == nil || s.Account.Refusals == 0 {
		return nil
	}
	return []doctor.Finding{warning("memory", "ask for more memory of the GPU, or have the program use less (smaller batches, no growing cache)",
		"container %s was refused %d allocations at its limit: it has %d of %d MiB of GPU %d, and the last asked for %d MiB more (%s)",
		c.Container, s.Account.Refusals, s.Account.MemoryBytes>>20, s.MemoryLimitBytes>>20, s.Index, roundUp(s.Account.RefusedBytes), s.Account.RefusedWay)}
}

// metered returns a finding if a container's limit on GPU time may not hold.
func metered(c agentapi.Container, s agentapi.Share) []doctor.Finding {
	if s.Meter == nil || !s.Meter.Disagrees {
		return nil
	}
	return []doctor.Finding{warning("meter", doctor.MeterAdvice, "container %s was charged %.1f %% of the time of GPU %d, and the driver saw it have %.1f %% in %s: %.1f points beyond the error of %d samples",
		c.Container, 100*s.Meter.Metered, s.Index, 100*s.Meter.Observed, show.Seconds(s.Meter.Seconds), math.Abs(100*s.Meter.Disagreement), s.Meter.Samples)}
}

// ratioOf formats the ratio of observed to metered time, with its bounds.
func ratioOf(m *agentapi.Meter) string {
	if m == nil || m.Ratio == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f (%.2f to %.2f)", m.Ratio, m.Low, m.High)
}

func roundUp(bytes uint64) uint64 { return (bytes + 1<<20 - 1) >> 20 }

func throttled(c agentapi.Container, s agentapi.Share, before *agentapi.Account, between time.Duration) []doctor.Finding {
	if s.ComputeLimitPPM == 0 || s.Account == nil || s.Account.ThrottledSeconds == 0 {
		return nil
	}
	rate := 0.0
	if before != nil && between > 0 {
		rate = max(s.Account.ThrottledSeconds-before.ThrottledSeconds, 0) / between.Seconds()
	}
	limit := float64(s.ComputeLimitPPM) / 10_000
	if rate < muchHeld && (s.Utilisation == nil || *s.Utilisation < nearLimit*limit) {
		return nil // the container was throttled earlier, not now
	}
	fix := fmt.Sprintf("this is its limit at work. For more ask for more (%svgpu-cores), or let it have what others leave idle: the annotation %s<resource> with a maximum, or %s: share, where the node lets pods choose",
		ownPrefix, request.MaximumAnnotation, request.PolicyAnnotation)
	switch {
	case s.ComputeMaximumPPM > 0 && s.Utilisation != nil && *s.Utilisation >= nearLimit*float64(s.ComputeMaximumPPM)/10_000:
		fix = fmt.Sprintf("this is its maximum at work. For more raise that (%s<resource>)", request.MaximumAnnotation)
	case s.ComputeMaximumPPM > 0:
		fix = fmt.Sprintf("it has its guarantee, and others need the rest. For more ask for more (%svgpu-cores)", ownPrefix)
	}
	return []doctor.Finding{warning("time", fix,
		"container %s is held back by its limit on GPU time: it has %s of GPU %d, and its threads waited %.2f s of each second just now, %s in all",
		c.Container, show.TimeOfLimit(&s), s.Index, rate, show.Seconds(s.Account.ThrottledSeconds))}
}

// node returns a finding if the pod's node is not ready for GPU containers.
func (p Pod) node() []doctor.Finding {
	for i := range p.Nodes {
		if p.Nodes[i].Name != p.Pod.Spec.NodeName {
			continue
		}
		if c := condition(&p.Nodes[i], ready); c != nil && c.Status != corev1.ConditionTrue {
			return []doctor.Finding{warning("node", "kubectl vgpu doctor "+p.Nodes[i].Name, "its node %s: %s", p.Nodes[i].Name, oneLine(c.Message))}
		}
	}
	return nil
}

// Write writes the facts, the findings and the Events.
func (p Pod) Write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "Name:\t%s\n", p.Pod.Name)
	fmt.Fprintf(t, "Namespace:\t%s\n", p.Pod.Namespace)
	fmt.Fprintf(t, "Node:\t%s\n", cmp.Or(p.Pod.Spec.NodeName, "none yet"))
	fmt.Fprintf(t, "Status:\t%s\n", Status(p.Pod))
	for i, c := range slices.Concat(p.Pod.Spec.InitContainers, p.Pod.Spec.Containers) {
		label := ""
		if i == 0 {
			label = "Asks for:"
		}
		fmt.Fprintf(t, "%s\t%s: %s\n", label, c.Name, show.Requested(Asked(c, p.Nodes)))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if err := p.writeGPUs(w); err != nil {
		return err
	}
	if err := writeFindings(w, p.Findings()); err != nil {
		return err
	}
	return writeEvents(w, p.ownEvents(), p.Now)
}

// ownEvents returns the Events without those in which kubelet repeats a refusal that the agent
// reports.
func (p Pod) ownEvents() []corev1.Event {
	refused := slices.ContainsFunc(p.Events, func(e corev1.Event) bool { return e.Reason == "VGPURefused" })
	return slices.DeleteFunc(slices.Clone(p.Events), func(e corev1.Event) bool {
		return refused && e.Reason == "Failed" && strings.Contains(e.Message, "nri-vgpu refuses")
	})
}

func (p Pod) writeGPUs(w io.Writer) error {
	own, _ := p.containers(p.After)
	if len(own) == 0 {
		_, err := fmt.Fprintln(w, "\nGPUs:  none")
		return err
	}
	fmt.Fprintln(w, "\nGPUs:")
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "  CONTAINER\tGPU\tUUID\tMEMORY\tTIME\tHELD BACK\tREFUSED\tPROCESSES\tSEEN/METERED")
	for _, c := range own {
		for _, s := range c.GPUs {
			back, refused := "-", "-"
			if s.Account != nil {
				back, refused = show.Seconds(s.Account.ThrottledSeconds), fmt.Sprint(s.Account.Refusals)
			}
			fmt.Fprintf(t, "  %s\t%d\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", c.Container, s.Index, s.UUID,
				show.MemoryOfLimit(s.MemoryUsedBytes, s.MemoryLimitBytes), show.TimeOfLimit(&s), back, refused, s.Processes, ratioOf(s.Meter))
		}
	}
	return t.Flush()
}

// Status returns the state of a pod as one word: the reason why a container waits, or the phase if
// no container waits.
func Status(pod *corev1.Pod) string {
	if pod.DeletionTimestamp != nil {
		return "Terminating"
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if s.State.Waiting != nil && s.State.Waiting.Reason != "" {
			return s.State.Waiting.Reason
		}
	}
	return string(pod.Status.Phase)
}

// Waiting returns entries for the pods that request a part of a GPU, hold no GPU and are not in
// have. Agents list only pods that hold GPUs.
func Waiting(pods []corev1.Pod, nodes []corev1.Node, have []show.PodEntry) []show.PodEntry {
	known := map[string]bool{}
	for _, e := range have {
		known[e.Namespace+"/"+e.Pod] = true
	}
	var all []show.PodEntry
	for i := range pods {
		pod := &pods[i]
		asked := askedByPod(pod, nodes)
		if known[pod.Namespace+"/"+pod.Name] || len(asked) == 0 || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		all = append(all, show.PodEntry{Status: Status(pod), Container: agentapi.Container{
			Namespace: pod.Namespace, Pod: pod.Name, PodUID: string(pod.UID), Node: pod.Spec.NodeName,
			Requests: asked, GPUs: []agentapi.Share{},
		}})
	}
	return all
}
