// SPDX-License-Identifier: Apache-2.0

package vgpu

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/volcano"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// shape identifies all that a verdict on a pod depends on, except the node. Most pods have the shape
// of many others.
type shape [sha256.Size]byte

// String returns the shape in hexadecimal.
func (s shape) String() string { return hex.EncodeToString(s[:]) }

// shapeOf returns the shape of a pod.
func shapeOf(asked request.Pod, pod *corev1.Pod) shape {
	containers := slices.Clone(asked.Containers)
	for i := range containers {
		containers[i].Name = ""
	}
	read := map[string]string{}
	for key, value := range pod.Annotations {
		if volcano.Reads(key) {
			read[key] = value
		}
	}
	var only string
	if volcano.Assigned(pod) { // the containers' names count
		only = asked.UID
	}
	// No value of these types fails to encode, and maps are encoded in the order of their keys.
	text, _ := json.Marshal([]any{containers, read, only})
	return sha256.Sum256(text)
}

// verdict is whether a pod fits on a node, and how well.
type verdict struct {
	// short is the first resource of which the node has too little, by its sums; "" if none.
	short string
	fits  bool
	// score is the node's score if the pod fits.
	score int64
}

// verdictOn returns the verdict on a pod for a node. An error reports that the pod fits in none of the
// node's GPUs, even if they are free.
func (p *Plugin) verdictOn(asked *asking, info fwk.NodeInfo) (verdict, error) {
	generation := info.GetGeneration()
	if known, ok := asked.memo.get(generation); ok {
		return known, nil
	}
	v := p.viewOf(info)
	pod, err := p.here(asked, v)
	if err != nil {
		return verdict{}, err
	}
	if short := asked.shortOn(info); short != "" {
		return verdict{short: short}, nil
	}
	_, free, err := v.Ledger.Plan(pod)
	decided := verdict{fits: err == nil, score: p.score(free)}
	asked.memo.put(generation, decided)
	return decided, nil
}

// score returns the score of a node on whose GPUs a pod would leave a part of the memory free. It
// follows the placement policy of the nodes: binpack prefers the nodes where the pod's GPUs become
// fullest, and spread those where they stay emptiest.
func (p *Plugin) score(free float64) int64 {
	if p.config.Placement.Policy != config.PlaceSpread {
		free = 1 - free
	}
	return int64(math.Round(free * float64(fwk.MaxScore)))
}

// here returns the request of a pod that is to be bound to the node, restricted to the GPUs that the
// pod accepts.
func (p *Plugin) here(asked *asking, v *view) (request.Pod, error) {
	if v.err != nil {
		return request.Pod{}, v.err
	}
	return volcano.Obey(asked.Pod, asked.spec, v.GPUs, p.config)
}

// shortOn returns the first resource of the pod of which the node has too little, by its sums; "" if
// none. Kubelet checks these sums again.
func (a *asking) shortOn(info fwk.NodeInfo) string {
	all, used := info.GetAllocatable().GetScalarResources(), info.GetRequested().GetScalarResources()
	for _, name := range a.names {
		if a.units[name] > all[corev1.ResourceName(name)]-used[corev1.ResourceName(name)] {
			return name
		}
	}
	return ""
}
