// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/finding"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/fleet"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
)

// Node contains the facts about a node.
type Node struct {
	Node *corev1.Node
	// Agent is the pod of the node's agent, nil without an agent. Namespace is the agents'
	// namespace.
	Agent     *fleet.Agent
	Namespace string
	Events    []corev1.Event
	// Overview is the answer of the node's agent. Without an answer Overview is nil, and Unknown is
	// the error.
	Overview *agentapi.Overview
	Unknown  error
	// Waiting are the pods that request a part of a GPU, are bound to this node and hold no GPU.
	Waiting []show.PodEntry
	Now     time.Time
}

// Findings returns the problems that the API server's objects and Overview show. If the agent is
// down, Findings is the only source of findings.
func (n Node) Findings() []finding.Finding {
	var all []finding.Finding
	if c := condition(n.Node, corev1.NodeReady); c == nil || c.Status != corev1.ConditionTrue {
		message := "kubelet has not reported"
		if c != nil {
			message = show.OneLine(c.Message)
		}
		all = append(all, problem("node", "on the node: systemctl status kubelet containerd", "the node is not Ready: %s", message))
	}
	if n.Node.Spec.Unschedulable {
		all = append(all, warning("node", "kubectl uncordon "+n.Node.Name, "the node is cordoned and accepts no new pods"))
	}
	all = append(all, n.agent()...)
	all = append(all, n.condition()...)
	if n.Overview != nil {
		all = append(all, n.overview()...)
	}
	return all
}

func (n Node) agent() []finding.Finding {
	switch {
	case n.Agent == nil:
		return []finding.Finding{n.absent()}
	case n.Agent.Down != "":
		return []finding.Finding{problem("agent-pod", fmt.Sprintf("kubectl -n %s logs %s --all-containers; kubectl -n %s describe pod %s", n.Namespace, n.Agent.Pod, n.Namespace, n.Agent.Pod),
			"the agent does not run, and containers that request GPUs cannot start until the agent runs: %s (%s)", n.Agent.Down, n.Agent.State)}
	case n.Unknown != nil:
		return []finding.Finding{problem("agent-pod", fmt.Sprintf("kubectl -n %s logs %s", n.Namespace, n.Agent.Pod), "%v", n.Unknown)}
	}
	return []finding.Finding{fine("agent-pod", "%s runs", n.Agent.Pod)}
}

// gpuNodeLabels are the labels by which the chart selects nodes by default.
var gpuNodeLabels = []string{
	"feature.node.kubernetes.io/pci-10de.present", "feature.node.kubernetes.io/pci-0300_10de.present",
	"feature.node.kubernetes.io/pci-0302_10de.present", "nvidia.com/gpu.present", "nri-vgpu.io/gpu",
}

// absent reports that the node has no pod of the agent.
func (n Node) absent() finding.Finding {
	const message = "no pod of nri-vgpu's agent is on this node: containers that request GPUs cannot start"
	if slices.ContainsFunc(gpuNodeLabels, func(label string) bool { return n.Node.Labels[label] == "true" }) {
		return problem("agent-pod", fmt.Sprintf("kubectl -n %s describe daemonset; a node selector or a taint may exclude the node", n.Namespace), message)
	}
	return problem("agent-pod", fmt.Sprintf("kubectl label node %s nri-vgpu.io/gpu=true", n.Node.Name),
		message+". The node has no label by which the chart selects nodes (gpuNodeLabels)")
}

func (n Node) condition() []finding.Finding {
	patcher := fmt.Sprintf("kubectl -n %s logs -l app.kubernetes.io/component=patcher", n.Namespace)
	c := condition(n.Node, ready)
	switch {
	case c == nil:
		return []finding.Finding{problem("condition", patcher, "the Node has no condition %s: the patcher has never reported, or the node never had a GPU", ready)}
	case c.Status != corev1.ConditionTrue:
		return []finding.Finding{problem("condition", n.fixCondition(c.Reason), "%s is %s since %s, %s: %s", ready, c.Status, ago(n.Now, c.LastTransitionTime.Time), c.Reason, show.OneLine(c.Message))}
	case len(offered(n.Node)) == 0:
		return []finding.Finding{problem("resources", patcher, "the Node offers no resource of nri-vgpu: no pod that requests a GPU can start here")}
	}
	return []finding.Finding{fine("condition", "%s: %s", c.Reason, show.OneLine(c.Message))}
}

// fixCondition returns the fix for a reason of the condition. The condition's message states whether
// another device plugin offers the GPU, and whether the GPU is in MIG mode.
func (n Node) fixCondition(reason string) string {
	switch reason {
	case "GPUUnhealthy":
		return "if the message names another device plugin: docs/how-to/coexist.md; else on the node: nvidia-smi; dmesg | grep -i xid; then reset the GPU, or restart the node"
	case "NoGPU":
		return "if the message names a GPU in MIG mode: docs/how-to/mig.md; else on the node: nvidia-smi; dmesg | grep -i xid; then repair the driver, or restart the node"
	case "ContainersUnadjusted":
		return "kubectl get events -A --field-selector reason=VGPUUnadjusted   # then delete these pods"
	default:
		return fmt.Sprintf("kubectl -n %s get pods -o wide; kubectl -n %s logs -l app.kubernetes.io/component=agent", n.Namespace, n.Namespace)
	}
}

func (n Node) overview() []finding.Finding {
	var all []finding.Finding
	if n.Overview.Driver != "" {
		all = append(all, problem("driver", "on the node: nvidia-smi; dmesg | grep -i xid", "%s", n.Overview.Driver))
	}
	for _, g := range n.Overview.GPUs {
		switch {
		case slices.Contains(n.Overview.OfferedTwice, g.UUID):
			all = append(all, problem("foreign", fmt.Sprintf("set node.gpus.exclude = [%q] in config.toml to leave the GPU to the other plugin, or take the GPU from the other plugin (docs/how-to/coexist.md)", g.UUID),
				"GPU %s (%s) gets no new containers: %s", g.Number(), g.UUID, g.Unhealthy))
		case g.Unhealthy != "":
			all = append(all, problem("gpu", "on the node: nvidia-smi -q -i "+cmp.Or(g.MIG.Parent, g.UUID)+"; dmesg | grep -i xid", "GPU %s (%s) is unhealthy and gets no new containers: %s", g.Number(), g.UUID, g.Unhealthy))
		}
	}
	for _, p := range n.Overview.Processes {
		if p.Pod == "" {
			all = append(all, warning("process", "end the process, or reserve memory for it: node.reserved_memory_mib", "process %d (%s) uses %s outside of all pods", p.PID, p.Command, p.UUID))
		}
	}
	for _, w := range n.Waiting {
		all = append(all, warning("pod", fmt.Sprintf("kubectl vgpu describe pod -n %s %s", w.Namespace, w.Pod), "%s/%s is bound to this node and has no GPU: %s", w.Namespace, w.Pod, w.Status))
	}
	return all
}

// Write writes the facts, the findings and the Events.
func (n Node) Write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "Name:\t%s\n", n.Node.Name)
	version := "not known"
	if n.Overview != nil {
		version = n.Overview.Version
	}
	fmt.Fprintf(t, "Agent:\t%s\n", version)
	for i, name := range offered(n.Node) {
		label := ""
		if i == 0 {
			label = "Offers:"
		}
		amount := n.Node.Status.Allocatable[corev1.ResourceName(name)]
		fmt.Fprintf(t, "%s\t%s: %s\n", label, name, amount.String())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if n.Overview != nil {
		if err := n.writeOverview(w); err != nil {
			return err
		}
	}
	if err := writeFindings(w, n.Findings()); err != nil {
		return err
	}
	return writeEvents(w, ofOurs(n.Events), n.Now)
}

// ofOurs returns the Events whose reasons are nri-vgpu's.
func ofOurs(events []corev1.Event) []corev1.Event {
	return slices.DeleteFunc(slices.Clone(events), func(e corev1.Event) bool {
		_, known := advice[e.Reason]
		return !known
	})
}

func (n Node) writeOverview(w io.Writer) error {
	one := []agentapi.Overview{*n.Overview}
	fmt.Fprintln(w, "\nGPUs:")
	listing := show.Listing{Format: show.FormatWide, Order: show.ByName, Out: indented{w}}
	if err := listing.GPUs(one); err != nil {
		return err
	}
	fmt.Fprintln(w, "\nContainers:")
	listing.Format = show.FormatTable
	return listing.Pods(show.Entries(one))
}

// indented indents its output by two spaces.
type indented struct{ out io.Writer }

func (i indented) Write(p []byte) (int, error) {
	if _, err := io.WriteString(i.out, "  "+string(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}
