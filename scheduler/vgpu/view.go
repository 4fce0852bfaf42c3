// SPDX-License-Identifier: Apache-2.0

package vgpu

import (
	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/nodegpus"
)

// view is the use of a node's GPUs by the pods of one generation of its NodeInfo. Generations are
// unique, including those of the copies that preemption tries. A view never changes.
type view struct {
	nodegpus.Use
	generation int64
	err        error // why the node's GPUs are not known
}

// viewOf returns the view of a node.
func (p *Plugin) viewOf(info fwk.NodeInfo) *view {
	name := info.Node().Name
	if known, ok := p.views.Load(name); ok && known.(*view).generation == info.GetGeneration() {
		return known.(*view)
	}
	v := p.newView(info)
	p.views.Store(name, v)
	return v
}

func (p *Plugin) newView(info fwk.NodeInfo) *view {
	var pods []*corev1.Pod
	for _, known := range info.GetPods() {
		pods = append(pods, known.GetPod())
	}
	reader := nodegpus.Reader{Config: p.config, Request: p.requestOf, Assignment: p.assignmentOf}
	use, err := reader.Use(info.Node(), pods)
	return &view{use, info.GetGeneration(), err}
}

// assignmentOf returns the assignment of a pod that has one, or that this scheduler is binding.
func (p *Plugin) assignmentOf(pod *corev1.Pod) (string, bool) {
	if text, bound := pod.Annotations[assign.Annotation]; bound {
		return text, true
	}
	return p.reservedFor(pod.UID)
}
