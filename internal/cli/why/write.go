// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// Answer is the explanation for one pod.
type Answer struct {
	Pod   *corev1.Pod
	Asked request.Pod
	// Invalid is the error in the pod's request.
	Invalid error
	// Mode is the mode of scheduling. Left is the mode of LeftFrom.
	Mode, Left string
	// Nodes are the nodes with GPUs, the closest to a fit first.
	Nodes []Node
	// Unknown is the error if agents could not be queried.
	Unknown error
}

// explained reports whether the explanation does not depend on the nodes.
func (a Answer) explained() bool { return a.Invalid != nil || !a.waits() || !a.asks() }

func (a Answer) waits() bool { return a.Pod.Spec.NodeName == "" && !ended(a.Pod) }

func (a Answer) asks() bool { return slices.ContainsFunc(a.Asked.Containers, request.Container.Asks) }

// Write writes the explanation. Write only counts the nodes beyond most; 0 writes all nodes.
func (a Answer) Write(w io.Writer, most int) error {
	name := a.Pod.Namespace + "/" + a.Pod.Name
	switch {
	case a.Invalid != nil:
		_, err := fmt.Fprintf(w, "The request of pod %s is invalid, and no node starts the pod: %v\n-> correct the spec and recreate the pod\n", name, a.Invalid)
		return err
	case !a.waits():
		_, err := fmt.Fprintf(w, "Pod %s waits for no node: it is on %s (%s).\n-> kubectl vgpu describe pod -n %s %s\n",
			name, nodeOf(a.Pod), a.Pod.Status.Phase, a.Pod.Namespace, a.Pod.Name)
		return err
	case !a.asks():
		_, err := fmt.Fprintf(w, "Pod %s requests no part of a GPU. The scheduler reports: %s\n", name, show.OneLine(schedulerReport(a.Pod)))
		return err
	}
	fmt.Fprintf(w, "Pod %s waits, with this request:\n", name)
	for _, c := range a.Asked.Containers {
		for _, share := range c.Shares {
			fmt.Fprintf(w, "  %s: %s\n", c.Name, placement.Describe(share))
		}
	}
	if err := a.table(w, most); err != nil {
		return err
	}
	if a.Unknown != nil {
		fmt.Fprintf(w, "\nSome agents did not answer: %v\n", a.Unknown)
	}
	_, err := fmt.Fprintf(w, "\n%s\nThe scheduler reports: %s\n", a.conclusion(), show.OneLine(schedulerReport(a.Pod)))
	return err
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func nodeOf(pod *corev1.Pod) string {
	if pod.Spec.NodeName == "" {
		return "no node"
	}
	return pod.Spec.NodeName
}

// table writes a line for each GPU, or for a node whose GPUs are not known.
func (a Answer) table(w io.Writer, most int) error {
	if len(a.Nodes) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "NODE\tGPU\tFREE\tWHY NOT")
	shown := a.Nodes
	if most > 0 {
		shown = shown[:min(most, len(shown))]
	}
	for _, n := range shown {
		n.lines(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if more := len(a.Nodes) - len(shown); more > 0 {
		fmt.Fprintf(w, "and %d more nodes, which fit no better (--all shows them)\n", more)
	}
	return nil
}

func (n Node) lines(w io.Writer) {
	if len(n.GPUs) == 0 {
		fmt.Fprintf(w, "%s\t-\t-\t%s\n", n.Name, show.OneLine(cmp.Or(n.Excluded, n.Against)))
		return
	}
	for _, g := range n.GPUs {
		_, free, _ := strings.Cut(g.String(), ": ")
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", n.Name, g.Number(), free, show.OneLine(cmp.Or(n.Excluded, g.Against, n.Against, "it has room")))
	}
}

// conclusion returns the meaning of the verdicts, and advice.
func (a Answer) conclusion() string {
	fits, excluded := 0, 0
	for _, n := range a.Nodes {
		switch {
		case n.Fits:
			fits++
		case n.Excluded != "":
			excluded++
		}
	}
	switch {
	case a.Left != "":
		return fmt.Sprintf("The pod was created with scheduling.mode=%s, and no node starts it with scheduling.mode=%s. Delete it, so that its controller creates another: kubectl delete pod -n %s %s",
			a.Left, a.Mode, a.Pod.Namespace, a.Pod.Name)
	case len(a.Nodes) == 0:
		return "No node offers GPUs: kubectl vgpu doctor"
	case fits > 0:
		return fmt.Sprintf("The GPUs of %d of %d nodes have room. If the pod still waits, GPUs are not the reason: see the scheduler's report.", fits, len(a.Nodes))
	case excluded == len(a.Nodes):
		return "No node accepts the pod, apart from its GPUs: see the reasons above."
	}
	if never := a.never(); never != "" {
		return "No node can ever start the pod: " + never + ". " + NeverAdvice
	}
	return fmt.Sprintf("No GPU of %d nodes has room: wait, request less, or delete a pod (kubectl vgpu get pods -A).", len(a.Nodes))
}

// NeverAdvice is the advice for a pod that Never describes.
const NeverAdvice = "Neither waiting nor deleting other pods helps: recreate the pod with a smaller request, or add a node with such GPUs."

// never returns the reason of Never, or "" if the GPUs of a node are not known.
func (a Answer) never() string {
	var nodes [][]placement.Room
	for _, n := range a.Nodes {
		if len(n.GPUs) == 0 {
			return ""
		}
		var rooms []placement.Room
		for _, g := range n.GPUs {
			rooms = append(rooms, g.Room)
		}
		nodes = append(nodes, rooms)
	}
	return Never(a.Asked, nodes)
}
