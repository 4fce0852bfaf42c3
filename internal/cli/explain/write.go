// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
)

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
			label = "Requests:"
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
	fmt.Fprintln(t, "  CONTAINER\tGPU\tUUID\tMEMORY\tTIME\tTHROTTLED\tREFUSED\tPROCESSES\tSEEN/METERED")
	for _, c := range own {
		for _, s := range c.GPUs {
			back, refused := "-", "-"
			if s.Account != nil {
				back, refused = show.Seconds(s.Account.ThrottledSeconds), fmt.Sprint(s.Account.Refusals)
			}
			fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", c.Container, s.Number(), s.UUID,
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
