// SPDX-License-Identifier: Apache-2.0

// Package nodegpus derives the use of a node's GPUs from the Node and its pods, by the rules of the
// node's ledger.
package nodegpus

import (
	"cmp"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/choice"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/resize"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/volcano"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// ErrNotListed means that a Node does not list its GPUs.
var ErrNotListed = errors.New("the node does not list its GPUs (its config.toml needs scheduling.mode = \"scheduler\")")

// Use is a node's GPUs and their use by the node's pods.
type Use struct {
	GPUs   []gpu.GPU
	Ledger *placement.Ledger
}

// Reader reads pods. Request and Assignment may cache their results.
type Reader struct {
	Config config.Config
	// Request returns the request of a pod's spec. Annotations do not change the GPUs that a pod
	// holds.
	Request func(*corev1.Pod) (request.Pod, error)
	// Assignment returns the assignment of a pod by nri-vgpu-scheduler or by the node, and whether
	// the pod has an assignment.
	Assignment func(*corev1.Pod) (string, bool)
}

// NewReader returns a Reader without a cache.
func NewReader(cfg config.Config) Reader {
	return Reader{
		Config:  cfg,
		Request: func(pod *corev1.Pod) (request.Pod, error) { return request.FromPod(pod, cfg.Dialects) },
		Assignment: func(pod *corev1.Pod) (string, bool) {
			text, assigned := pod.Annotations[assign.Annotation]
			return text, assigned
		},
	}
}

// Use returns the use of a node's GPUs. The pods are all pods of the node that have not ended. The
// result equals the node's own ledger, except for pods whose GPUs the node has chosen but not
// announced yet. Use returns ErrNotListed, or an error about the Node's annotation.
func (r Reader) Use(node *corev1.Node, pods []*corev1.Pod) (Use, error) {
	text, listed := node.Annotations[assign.GPUsAnnotation]
	if !listed {
		return Use{}, ErrNotListed
	}
	gpus, err := assign.ParseGPUs(text)
	if err != nil {
		return Use{}, err
	}
	// A pod holds its GPU even if the GPU has become unhealthy.
	ledger := placement.New(healthy(gpus), r.Config)
	for _, h := range r.holders(pods, gpus) {
		h.enter(ledger)
	}
	ledger.SetGPUs(gpus)
	return Use{gpus, ledger}, nil
}

// holder is a pod that holds or will hold GPUs.
type holder struct {
	request.Pod
	// holds reports whether the pod certainly holds the GPUs to which its shares are bound.
	holds bool
}

func (h holder) enter(ledger *placement.Ledger) {
	// A started pod keeps its GPUs, even if the capacity has shrunk.
	if h.holds && ledger.Hold(h.Pod) == nil {
		return
	}
	for _, c := range h.Containers {
		if c.Asks() {
			// If a pod fits no GPU, its node has refused or will refuse the pod.
			_, _ = ledger.Place(h.Pod, c.Name)
			return
		}
	}
}

// holders returns the pods of a node that request GPUs, bound to their assigned GPUs. Started pods
// with an assignment come first, then other pods with an assignment, and then pods without an
// assignment. Within each class the oldest pod comes first. For pods without an assignment, the
// ledger chooses GPUs by the node's rules.
func (r Reader) holders(pods []*corev1.Pod, gpus []gpu.GPU) []holder {
	var holding, assigned, others []holder
	for _, pod := range byAge(pods) {
		asked, err := r.Request(pod)
		if err != nil || !slices.ContainsFunc(asked.Containers, request.Container.Asks) {
			continue // no node starts a pod with an invalid spec
		}
		switch bound, ok := r.bound(asked, pod, gpus); {
		case ok && started(asked, pod):
			holding = append(holding, holder{bound, true})
		case ok:
			assigned = append(assigned, holder{bound, false})
		default:
			others = append(others, holder{bound, false})
		}
	}
	return slices.Concat(holding, assigned, others)
}

// bound returns the request of a pod with the sizes that its node reports, and whether the pod has a
// valid assignment. bound binds the request to the GPUs of a valid assignment.
func (r Reader) bound(asked request.Pod, pod *corev1.Pod, gpus []gpu.GPU) (bound request.Pod, ok bool) {
	if text, assigned := r.Assignment(pod); assigned {
		if bound, err := assign.Bind(asked, text, gpus); err == nil {
			return resize.InForce(bound, pod), true
		}
		if bound, err := assign.BindAnywhere(asked, text); err == nil {
			return without(resize.InForce(bound, pod), pod, gpus), true
		}
	}
	// An assignment by Volcano's scheduler, or the pod's wishes, may have become invalid since.
	if obeyed, err := choice.Obey(asked, pod, gpus, r.Config); err == nil {
		return resize.InForce(obeyed, pod), volcano.Assigned(pod)
	}
	return asked, false
}

// without returns the part of a pod on the listed GPUs, if the node no longer lists all GPUs of the pod's
// assignment. The node has refused or will refuse such a pod, unless the pod has started.
func without(bound request.Pod, pod *corev1.Pod, gpus []gpu.GPU) request.Pod {
	left := bound
	left.Containers = slices.Clone(bound.Containers)
	for i := range left.Containers {
		c := &left.Containers[i]
		c.Shares = slices.DeleteFunc(slices.Clone(c.Shares), func(s request.Share) bool {
			return !started(bound, pod) || !slices.ContainsFunc(gpus, func(g gpu.GPU) bool { return g.UUID == s.GPUs[0] })
		})
	}
	return left
}

// started reports whether kubelet has reported a started container that requests GPUs. The node has
// granted GPUs to every such container. Containers that do not request GPUs start without a grant.
func started(asked request.Pod, pod *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses), func(s corev1.ContainerStatus) bool {
		return s.ContainerID != "" && asked.Asks(s.Name)
	})
}

// byAge returns the pods, the oldest pod first.
func byAge(pods []*corev1.Pod) []*corev1.Pod {
	pods = slices.Clone(pods)
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
