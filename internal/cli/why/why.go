// SPDX-License-Identifier: Apache-2.0

// Package why explains, for each node and GPU of a cluster, why a pod waits. Pure functions judge
// the facts; one file gathers the facts.
package why

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulingcorev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/choice"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/nodegpus"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// Node is the verdict on a node for a pod.
type Node struct {
	Name string
	// Excluded is the reason why the node does not accept the pod, even with free GPU capacity; ""
	// if the node accepts the pod.
	Excluded string
	// Against is the reason why the pod does not fit although single GPUs have room, or why the
	// GPUs are not known; "" without a reason.
	Against string
	GPUs    []GPU
	// Fits reports whether the node's GPUs and their sums have room for the pod.
	Fits bool
}

// GPU is the verdict on a GPU for the pod's first share that has no room.
type GPU struct {
	placement.Room
	// Against is the reason why the GPU has no room for the share; "" if the GPU has room.
	Against string
}

// Judge returns the verdict on a node for a pod. The parameter pods contains the node's pods that
// have not ended. If the Node does not list its GPUs, rooms contains the free parts of the GPUs, as
// the node's agent reports them. cfg is the configuration of the node's pool.
func Judge(pod *corev1.Pod, node *corev1.Node, pods []*corev1.Pod, rooms []placement.Room, cfg config.Config) Node {
	n := Node{Name: node.Name}
	use, err := nodegpus.NewReader(cfg).Use(node, pods)
	asked, invalid := request.Read(pod, cfg)
	switch {
	case invalid != nil:
		n.Against = invalid.Error()
	case errors.Is(err, nodegpus.ErrNotListed) && len(rooms) > 0:
		n.judgeRooms(rooms, asked)
	case err != nil:
		n.Against = err.Error()
	default:
		n.judgeUse(use, asked, pod, cfg)
	}
	n.Excluded = excludes(pod, node)
	if n.Fits {
		n.Against = short(pod, node, pods, cfg.Dialects)
	}
	n.Fits = n.Fits && n.Excluded == "" && n.Against == ""
	return n
}

// judgeUse judges the GPUs by the node's ledger.
func (n *Node) judgeUse(use nodegpus.Use, asked request.Pod, pod *corev1.Pod, cfg config.Config) {
	here, err := choice.Obey(asked, pod, use.GPUs, cfg)
	if err != nil {
		n.Against = err.Error()
		return
	}
	_, _, err = use.Ledger.Plan(here)
	n.Fits = err == nil
	share, gpus := firstShare(asked)
	noRoom := (*placement.NoRoomError)(nil)
	if errors.As(err, &noRoom) {
		share, gpus = noRoom.Share, noRoom.GPUs
	}
	if n.list(use.Ledger.Free(), share, gpus) > 0 && noRoom != nil {
		n.Against = fmt.Sprintf("single GPUs have room for a part that container %s requests, but not for all parts of the pod at once", noRoom.Container)
	}
}

// judgeRooms judges the GPUs for each container alone. judgeRooms lists the GPUs for the first
// container that has no room.
func (n *Node) judgeRooms(rooms []placement.Room, asked request.Pod) {
	n.Fits = true
	share, gpus := firstShare(asked)
	for _, c := range asked.Containers {
		for _, s := range c.Shares {
			room := len(slices.DeleteFunc(slices.Clone(rooms), func(r placement.Room) bool { return r.Lacks(s, len(c.Shares)) != "" }))
			if room < len(c.Shares) && n.Fits {
				n.Fits, share, gpus = false, s, len(c.Shares)
			}
		}
	}
	if room := n.list(rooms, share, gpus); !n.Fits && room > 0 {
		n.Against = "fewer GPUs have room than a container requests"
	}
}

// list lists each GPU with the reason why the GPU has no room for a share of a container with this
// number of GPUs. list returns the number of GPUs with room.
func (n *Node) list(rooms []placement.Room, share request.Share, gpus int) (room int) {
	for _, r := range rooms {
		g := GPU{r, r.Lacks(share, gpus)}
		if g.Against == "" {
			room++
		}
		n.GPUs = append(n.GPUs, g)
	}
	return room
}

// firstShare returns the first share of the first container that requests GPUs, and the number of the
// container's GPUs.
func firstShare(asked request.Pod) (share request.Share, gpus int) {
	for _, c := range asked.Containers {
		if c.Asks() {
			return c.Shares[0], len(c.Shares)
		}
	}
	return request.Share{}, 0
}

// excludes returns the reason why the node does not accept the pod, even with enough resources.
func excludes(pod *corev1.Pod, node *corev1.Node) string {
	cordoned := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	if node.Spec.Unschedulable && !schedulingcorev1.TolerationsTolerateTaint(klog.Background(), pod.Spec.Tolerations, &cordoned, false) {
		return "the node is cordoned"
	}
	if match, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil {
		return "the pod's node affinity is invalid: " + err.Error()
	} else if !match {
		return "the pod's node selector or affinity excludes it"
	}
	taint, untolerated := schedulingcorev1.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, pod.Spec.Tolerations, func(t *corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
	}, false)
	if untolerated {
		return "the pod does not tolerate the taint " + taint.ToString()
	}
	return ""
}

// short returns the first of our resources of which the node has too little, by its sums.
func short(pod *corev1.Pod, node *corev1.Node, pods []*corev1.Pod, dialects config.Dialects) string {
	need, used := request.Used([]*corev1.Pod{pod}, dialects), request.Used(pods, dialects)
	for _, name := range slices.Sorted(maps.Keys(need)) {
		all := node.Status.Allocatable[corev1.ResourceName(name)]
		if free := max(all.Value()-used[name], 0); need[name] > free {
			return fmt.Sprintf("%d of %d %s are free, by the sum that the node advertises", free, need[name], name)
		}
	}
	return ""
}

// byCloseness sorts nodes: first nodes that fit, then nodes whose GPUs have no room, then nodes
// without known GPUs, then excluded nodes. Within a group, the node with the most free memory of a
// GPU comes first.
func byCloseness(nodes []Node) {
	rank := func(n Node) int {
		switch {
		case n.Fits:
			return 0
		case n.Excluded != "":
			return 3
		case len(n.GPUs) == 0:
			return 2
		}
		return 1
	}
	slices.SortStableFunc(nodes, func(a, b Node) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.most(), a.most()), strings.Compare(a.Name, b.Name))
	})
}

// most returns the most free memory of a GPU of the node.
func (n Node) most() (most uint64) {
	for _, g := range n.GPUs {
		most = max(most, g.FreeMemoryBytes)
	}
	return most
}
