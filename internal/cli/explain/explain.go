// SPDX-License-Identifier: Apache-2.0

// Package explain finds the reason why a pod waits, was refused or is slow, or the problem of a
// node, and the fix. The package reads the spec, the Events, the agents' overviews and the
// throttled time of containers. One file gathers the facts; pure functions judge the facts.
package explain

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/finding"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/fleet"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
)

const (
	// ownPrefix is the prefix of the resources of nri-vgpu's native dialect.
	ownPrefix = "nri-vgpu.io/"
	// advertised is the Node annotation that lists the resources that nri-vgpu
	// advertises.
	advertised = "nri-vgpu.io/advertised"
	// ready is the type of nri-vgpu's Node condition.
	ready corev1.NodeConditionType = "VGPUReady"
	// maxEvents bounds the Events that the output lists.
	maxEvents = 12
)

// advice maps the reason of an Event to its fix.
var advice = map[string]string{ //nolint:gosec // the output contains no secret
	"VGPURefused":            "follow the message: if the spec is wrong, recreate the pod; if the node is the cause, correct the node, and kubelet retries",
	"VGPUEvicted":            "nothing: the pod's controller creates another pod; if evictions continue, no GPU of the cluster has room: request less, or make room",
	"VGPUNotEvicted":         "make room on this node, or recreate the pod",
	"VGPUUnadjusted":         "delete the pod: it runs without its limits; kubectl vgpu doctor reports how to prevent this",
	"VGPUStopped":            "delete the pod and check whether its image bypasses the limits; see the message",
	"VGPUUsageForged":        "find the program of the image that writes to the usage page or bypasses the interposer; the agent now charges the memory that the driver reports",
	"VGPUBypassed":           "delete the pod, or end the process; docs/explanation/security.md explains how to prevent this",
	"VGPUMemoryLimitReached": "request more memory of the GPU, or let the program use less (smaller batches, no growing cache)",
	"VGPUResized":            "",
	"VGPUNotResized":         "request another size by kubectl vgpu resize, or wait until the cause is over; docs/how-to/resize.md explains each cause",
	"GPUUnhealthy":           "if the note names another device plugin, see docs/how-to/coexist.md; else drain it: nvidia-smi -q; dmesg | grep -i xid; then reset the GPU",
	"GPURecovered":           "",
	"MPSUnavailable":         "follow the message; the daemon's logs are in /var/lib/nri-vgpu/mps on the node",
	"MPSRecovered":           "restart the pods that used MPS and now fail",
	"VGPUGuardNotLoaded":     "restart the container runtime once: systemctl restart containerd (running containers continue)",
	"VGPUDriverNames":        "install an nri-vgpu that knows this driver; programs that need a refused function get CUDA_ERROR_NOT_SUPPORTED until then",
}

// good are the Event reasons that report no problem.
var good = []string{"GPURecovered", "MPSRecovered", "VGPUResized"}

func problem(check, fix, format string, args ...any) finding.Finding {
	return finding.Finding{Check: check, Level: finding.Problem, Message: fmt.Sprintf(format, args...), Fix: fix}
}

func warning(check, fix, format string, args ...any) finding.Finding {
	return finding.Finding{Check: check, Level: finding.Warning, Message: fmt.Sprintf(format, args...), Fix: fix}
}

func fine(check, format string, args ...any) finding.Finding {
	return finding.Finding{Check: check, Level: finding.OK, Message: fmt.Sprintf(format, args...)}
}

// offered returns the resources that nri-vgpu advertises on a node.
func offered(node *corev1.Node) []string {
	var names []string
	for name := range strings.SplitSeq(node.Annotations[advertised], ",") {
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}

// isOurs returns a function that reports whether a resource belongs to nri-vgpu: a node advertises
// the resource, or its name has the native prefix.
func isOurs(nodes []corev1.Node) func(name string) bool {
	names := map[string]bool{}
	for i := range nodes {
		for _, name := range offered(&nodes[i]) {
			names[name] = true
		}
	}
	return func(name string) bool { return names[name] || strings.HasPrefix(name, ownPrefix) }
}

// Asked returns the resources of nri-vgpu that a container requests.
func Asked(c corev1.Container, nodes []corev1.Node) map[string]int64 {
	ours := isOurs(nodes)
	all := map[string]int64{}
	for name, amount := range c.Resources.Limits {
		if ours(string(name)) && amount.Value() > 0 {
			all[string(name)] = amount.Value()
		}
	}
	return all
}

// askedByPod returns the sum over a pod's containers, as the scheduler computes
// it.
func askedByPod(pod *corev1.Pod, nodes []corev1.Node) map[string]int64 {
	sum := map[string]int64{}
	for _, c := range pod.Spec.Containers {
		for name, n := range Asked(c, nodes) {
			sum[name] += n
		}
	}
	for _, c := range pod.Spec.InitContainers {
		for name, n := range Asked(c, nodes) {
			if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
				sum[name] += n
			} else {
				sum[name] = max(sum[name], n)
			}
		}
	}
	return sum
}

func condition(node *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	k := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == kind })
	if k < 0 {
		return nil
	}
	return &node.Status.Conditions[k]
}

// latest returns the latest Event of each reason in advice.
func latest(events []corev1.Event) []corev1.Event {
	byReason := map[string]corev1.Event{}
	for _, e := range events {
		if _, known := advice[e.Reason]; known {
			byReason[e.Reason] = e
		}
	}
	list := slices.Collect(maps.Values(byReason))
	slices.SortFunc(list, func(a, b corev1.Event) int { return fleet.LastSeen(a).Compare(fleet.LastSeen(b).Time) })
	return list
}

func times(e corev1.Event) int32 {
	n := max(e.Count, 1)
	if e.Series != nil {
		n = max(n, e.Series.Count)
	}
	return n
}

// writeFindings writes findings as doctor's table.
func writeFindings(w io.Writer, findings []finding.Finding) error {
	fmt.Fprintln(w, "\nFindings:")
	return finding.WriteTable(w, findings)
}

func writeEvents(w io.Writer, events []corev1.Event, now time.Time) error {
	if len(events) == 0 {
		_, err := fmt.Fprintln(w, "\nEvents:  none")
		return err
	}
	fmt.Fprintln(w, "\nEvents:")
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "  LAST SEEN\tTIMES\tTYPE\tREASON\tMESSAGE")
	for _, e := range events[max(0, len(events)-maxEvents):] {
		fmt.Fprintf(t, "  %s\t%d\t%s\t%s\t%s\n", ago(now, fleet.LastSeen(e).Time), times(e), e.Type, e.Reason, show.OneLine(e.Message))
	}
	return t.Flush()
}

func ago(now, then time.Time) string {
	if then.IsZero() {
		return "-"
	}
	switch d := max(now.Sub(then), 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds ago", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh ago", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd ago", int(d.Hours()/24))
	}
}

// roomOf describes the free capacity of a GPU.
func roomOf(g agentapi.GPU) string {
	name := fmt.Sprintf("GPU %s of %s: ", g.Number(), g.Node)
	switch {
	case g.Unhealthy != "":
		return name + "unhealthy"
	case g.Room == nil:
		return name + "not known"
	case g.Room.Exclusive:
		return name + "allocated as a whole"
	}
	return fmt.Sprintf("%s%d MiB, %g %% of the time", name, g.Room.FreeMemoryBytes>>20, float64(g.Room.FreeComputePPM)/10_000)
}

// rooms returns all GPUs that accept containers, sorted by free memory, the largest first.
func rooms(all []agentapi.Overview) []agentapi.GPU {
	var list []agentapi.GPU
	for _, o := range all {
		for _, g := range o.GPUs {
			if g.Unhealthy == "" && g.Room != nil && !g.Room.Exclusive {
				list = append(list, g)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b agentapi.GPU) int { return cmp.Compare(b.Room.FreeMemoryBytes, a.Room.FreeMemoryBytes) })
	return list
}

// maxRooms is the number of GPUs that describeRooms lists.
const maxRooms = 4

func describeRooms(list []agentapi.GPU) string {
	var texts []string
	for _, g := range list[:min(len(list), maxRooms)] {
		texts = append(texts, roomOf(g))
	}
	if more := len(list) - maxRooms; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return cmp.Or(strings.Join(texts, "; "), "nothing")
}
