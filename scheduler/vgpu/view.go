// SPDX-License-Identifier: Apache-2.0

package vgpu

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/nodegpus"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// view is the use of a node's GPUs by the pods of one generation of the node's NodeInfo.
// Generations are unique, even among the copies of a NodeInfo that preemption tries. A view never
// changes.
type view struct {
	nodegpus.Use
	generation int64
	err        error // why the use of the node's GPUs is unknown
}

// viewOf returns the view of a node.
func (p *Plugin) viewOf(info fwk.NodeInfo) *view {
	name := info.Node().Name
	if known, ok := p.views.Get(name); ok && known.(*view).generation == info.GetGeneration() {
		return known.(*view)
	}
	v := p.newView(info)
	p.views.Add(name, v)
	return v
}

func (p *Plugin) newView(info fwk.NodeInfo) *view {
	return p.viewWith(info, podsOn(info))
}

// viewWith returns the view of a node with these pods.
func (p *Plugin) viewWith(info fwk.NodeInfo, pods []*corev1.Pod) *view {
	cfg, pool := p.nodes.For(info.Node().Labels)
	read := func(pod *corev1.Pod) (request.Pod, error) { return p.specOf(pod, pool, cfg.Dialects) }
	reader := nodegpus.Reader{Config: cfg, Request: read, Assignment: p.assignmentOf}
	use, err := reader.Use(info.Node(), pods)
	return &view{use, info.GetGeneration(), err}
}

func podsOn(info fwk.NodeInfo) (pods []*corev1.Pod) {
	for _, known := range info.GetPods() {
		pods = append(pods, known.GetPod())
	}
	return pods
}

// viewFor returns the view for the choice of a pod's GPUs. The view omits the pod itself, which the
// snapshot of a group may already contain. The view adds the pods in beside and the pods that were
// reserved since the snapshot.
func (p *Plugin) viewFor(asked *asking, info fwk.NodeInfo, beside ...*corev1.Pod) *view {
	before := append(p.unseen.on(info.Node().Name), beside...)
	if !asked.group && len(before) == 0 {
		return p.viewOf(info)
	}
	pods := slices.DeleteFunc(podsOn(info), func(pod *corev1.Pod) bool {
		return string(pod.UID) == asked.UID || slices.ContainsFunc(before, func(b *corev1.Pod) bool { return b.UID == pod.UID })
	})
	return p.viewWith(info, append(pods, slices.DeleteFunc(before, func(b *corev1.Pod) bool { return string(b.UID) == asked.UID })...))
}

// assignmentOf returns the assignment of a pod that has an assignment, or that this scheduler is
// binding.
func (p *Plugin) assignmentOf(pod *corev1.Pod) (string, bool) {
	if text, bound := pod.Annotations[assign.Annotation]; bound {
		return text, true
	}
	return p.reservedFor(pod.UID)
}

// nominated returns the pods for which preemption has made room on a node, and whose room the asked
// pod must not take.
func (p *Plugin) nominated(asked *asking, node string) (pods []*corev1.Pod) {
	for _, known := range p.handle.NominatedPodsForNode(node) {
		pod := known.GetPod()
		if string(pod.UID) != asked.UID && corev1helpers.PodPriority(pod) >= corev1helpers.PodPriority(asked.spec) {
			pods = append(pods, pod)
		}
	}
	return pods
}
