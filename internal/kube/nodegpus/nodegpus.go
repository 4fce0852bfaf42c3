// SPDX-License-Identifier: Apache-2.0

// Package nodegpus derives the use of a node's GPUs from the Node and its pods, as the node's own
// ledger has it.
package nodegpus

import (
	"cmp"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/volcano"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// ErrNotListed reports that a Node does not list its GPUs.
var ErrNotListed = errors.New("the node does not list its GPUs (its config.toml needs scheduling.mode = \"scheduler\")")

// Use is a node's GPUs and their use by the node's pods.
type Use struct {
	GPUs   []gpu.GPU
	Ledger *placement.Ledger
}

// Reader reads pods. Its functions may remember what they have read.
type Reader struct {
	Config config.Config
	// Request returns a pod's request, and whether any of its containers requests GPUs.
	Request func(*corev1.Pod) (request.Pod, bool, error)
	// Assignment returns the assignment of a pod by nri-vgpu-scheduler or by the node, if any.
	Assignment func(*corev1.Pod) (string, bool)
}

// NewReader returns a Reader of pods as the API server has them.
func NewReader(cfg config.Config) Reader {
	return Reader{
		Config: cfg,
		Request: func(pod *corev1.Pod) (request.Pod, bool, error) {
			asked, err := request.Read(pod, cfg)
			return asked, err == nil && slices.ContainsFunc(asked.Containers, request.Container.Asks), err
		},
		Assignment: func(pod *corev1.Pod) (string, bool) {
			text, assigned := pod.Annotations[assign.Annotation]
			return text, assigned
		},
	}
}

// Use returns the use of a node's GPUs. The pods are those of the node that have not ended. The
// result is the node's own ledger, except for pods whose choice the node has not announced yet. Use
// returns ErrNotListed, or an error about the Node's annotation.
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
	for _, pod := range r.holders(pods, gpus) {
		for _, c := range pod.Containers {
			if c.Asks() {
				// A pod that finds no room has been refused by its node, or will be.
				_, _ = ledger.Place(pod, c.Name)
				break
			}
		}
	}
	ledger.SetGPUs(gpus)
	return Use{gpus, ledger}, nil
}

// holders returns the requests of a node's pods, bound to their assigned GPUs: first those of pods
// with an assignment, and then the others, the oldest first. The node chooses the GPUs of pods without
// an assignment by the same rules.
func (r Reader) holders(pods []*corev1.Pod, gpus []gpu.GPU) []request.Pod {
	var assigned, others []request.Pod
	for _, pod := range byAge(pods) {
		asked, asks, err := r.Request(pod)
		if err == nil && asks {
			asked, err = volcano.Obey(asked, pod, gpus, r.Config)
		}
		if err != nil || !asks {
			continue // no node starts a pod with a request that it cannot obey
		}
		text, ours := r.Assignment(pod)
		if !ours {
			others = append(others, asked)
		} else if bound, err := assign.Bind(asked, text, gpus); err == nil {
			assigned = append(assigned, bound)
		}
	}
	return append(assigned, others...)
}

// byAge returns the pods, the oldest first.
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
