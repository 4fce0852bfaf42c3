// SPDX-License-Identifier: Apache-2.0

package vgpu

import (
	"cmp"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// view is a node's GPUs and their use by the pods of one generation of its NodeInfo. Generations are
// unique, including those of the copies that preemption tries. A view never changes.
type view struct {
	generation int64
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
	gpus, err := assign.ParseGPUs(text)
	if err != nil {
		v.err = err
		return v
	}
	// A pod holds its GPU even if the GPU has become unhealthy.
	v.ledger = placement.New(healthy(gpus), p.config)
	for _, pod := range p.holders(info, gpus) {
		for _, c := range pod.Containers {
			if c.Asks() {
				// A pod that finds no room has been refused by its node, or will be.
				_, _ = v.ledger.Place(pod, c.Name)
				break
			}
		}
	}
	v.ledger.SetGPUs(gpus)
	return v
}

// holders returns the requests of a node's pods: first those of pods with an assignment, bound to
// its GPUs, and then those that another scheduler has bound, the oldest first. The node chooses
// the GPUs of such pods, by the same rules.
func (p *Plugin) holders(info fwk.NodeInfo, gpus []gpu.GPU) []request.Pod {
	var assigned, others []request.Pod
	var unassigned []*corev1.Pod
	for _, known := range info.GetPods() {
		pod := known.GetPod()
		asked, asks, err := p.requestOf(pod)
		if err != nil || !asks {
			continue // no node starts a pod with an invalid request
		}
		text, ok := p.reservedFor(pod.UID)
		if written, has := pod.Annotations[assign.Annotation]; has {
			text, ok = written, true
		}
		if ok {
			if bound, err := assign.Bind(asked, text, gpus); err == nil {
				assigned = append(assigned, bound)
			}
			continue // the node refuses an assignment that it cannot obey
		}
		unassigned = append(unassigned, pod)
	}
	slices.SortFunc(unassigned, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
	for _, pod := range unassigned {
		if asked, asks, err := p.requestOf(pod); err == nil && asks {
			others = append(others, asked)
		}
	}
	return append(assigned, others...)
}

func healthy(gpus []gpu.GPU) []gpu.GPU {
	all := slices.Clone(gpus)
	for i := range all {
		all[i].Healthy = true
	}
	return all
}
