// SPDX-License-Identifier: Apache-2.0

package vgpu

import (
	"cmp"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/volcano"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// view is a node's GPUs and their use by the pods of one generation of its NodeInfo. Generations are
// unique, including those of the copies that preemption tries. A view never changes.
type view struct {
	generation int64
	gpus       []gpu.GPU
	ledger     *placement.Ledger
	err        error // why the node's GPUs are not known
}

// errNoGPUs reports that a node does not list its GPUs.
var errNoGPUs = errors.New("the node does not list its GPUs (its config.toml needs scheduling.mode = \"scheduler\")")

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
	v := &view{generation: info.GetGeneration()}
	text, listed := info.Node().Annotations[assign.GPUsAnnotation]
	if !listed {
		v.err = errNoGPUs
		return v
	}
	if v.gpus, v.err = assign.ParseGPUs(text); v.err != nil {
		return v
	}
	// A pod holds its GPU even if the GPU has become unhealthy.
	v.ledger = placement.New(healthy(v.gpus), p.config)
	for _, pod := range p.holders(info, v.gpus) {
		for _, c := range pod.Containers {
			if c.Asks() {
				// A pod that finds no room has been refused by its node, or will be.
				_, _ = v.ledger.Place(pod, c.Name)
				break
			}
		}
	}
	v.ledger.SetGPUs(v.gpus)
	return v
}

// holders returns the requests of a node's pods, bound to the GPUs that a scheduler has assigned: first
// those of pods with an assignment of this scheduler, and then the others, the oldest first. The node
// chooses the GPUs of pods without any assignment, by the same rules.
func (p *Plugin) holders(info fwk.NodeInfo, gpus []gpu.GPU) []request.Pod {
	var assigned, others []request.Pod
	for _, pod := range byAge(info) {
		asked, asks, err := p.requestOf(pod)
		if err == nil && asks {
			asked, err = volcano.Obey(asked, pod, gpus, p.config)
		}
		if err != nil || !asks {
			continue // no node starts a pod with a request that it cannot obey
		}
		text, ours := p.assignmentOf(pod)
		if !ours {
			others = append(others, asked)
		} else if bound, err := assign.Bind(asked, text, gpus); err == nil {
			assigned = append(assigned, bound)
		}
	}
	return append(assigned, others...)
}

// assignmentOf returns the assignment of a pod that this scheduler has bound or is binding.
func (p *Plugin) assignmentOf(pod *corev1.Pod) (string, bool) {
	if text, bound := pod.Annotations[assign.Annotation]; bound {
		return text, true
	}
	return p.reservedFor(pod.UID)
}

// byAge returns the pods of a node, the oldest first.
func byAge(info fwk.NodeInfo) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, known := range info.GetPods() {
		pods = append(pods, known.GetPod())
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
	return pods
}

func healthy(gpus []gpu.GPU) []gpu.GPU {
	all := slices.Clone(gpus)
	for i := range all {
		all[i].Healthy = true
	}
	return all
}
