// SPDX-License-Identifier: Apache-2.0

package vgpu

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/choice"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/volcano"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// shape identifies all that a verdict on a pod depends on, except the node. Many pods have equal
// shapes.
type shape [sha256.Size]byte

// String returns the shape in hexadecimal.
func (s shape) String() string { return hex.EncodeToString(s[:]) }

// shapeOf returns the shape of a pod.
func shapeOf(asked request.Pod, pod *corev1.Pod, units map[string]int64) shape {
	containers := slices.Clone(asked.Containers)
	for i := range containers {
		containers[i].Name = ""
	}
	read := map[string]string{}
	for key, value := range pod.Annotations {
		if choice.Reads(key) || request.Reads(key) {
			read[key] = value
		}
	}
	var only string
	if volcano.Assigned(pod) { // the assignment depends on the containers' names
		only = asked.UID
	}
	// Marshal cannot fail for these types, and encodes maps in the order of their keys.
	text, _ := json.Marshal([]any{containers, units, read, only})
	return sha256.Sum256(text)
}

// verdict contains whether a pod fits on a node, and the value of the fit.
type verdict struct {
	// short is the first resource of which the node's sum is too small; "" if all sums suffice.
	short string
	fits  bool
	// valued reports whether value is known. value is the mean fraction of the memory that stays
	// free on the pod's GPUs. With the policy fragmentation, value is the cost of the placement.
	valued bool
	value  float64
}

// verdictOn returns the verdict on a pod for a node. An error means that the pod fits none of the
// node's GPUs, even free GPUs.
func (p *Plugin) verdictOn(asked *asking, info fwk.NodeInfo) (verdict, error) {
	generation := info.GetGeneration()
	if known, ok := asked.memo.get(generation); ok && !asked.group {
		return known, nil
	}
	v := p.viewIn(asked, info)
	pod, err := p.here(asked, v, info)
	if err != nil {
		return verdict{}, err
	}
	if short := asked.shortOn(info); short != "" {
		return verdict{short: short}, nil
	}
	_, free, err := v.Ledger.Plan(pod)
	decided := verdict{fits: err == nil}
	if decided.fits && p.policy != Fragmentation {
		decided.valued, decided.value = true, free
	}
	if !asked.group {
		asked.memo.put(generation, decided)
	}
	return decided, nil
}

// valueOn returns the value of a node for a pod that fits on the node.
func (p *Plugin) valueOn(asked *asking, info fwk.NodeInfo) (float64, error) {
	known, err := p.verdictOn(asked, info)
	if err != nil || known.valued {
		return known.value, err
	}
	if !known.fits {
		return 0, fmt.Errorf("score node %s: the pod does not fit", info.Node().Name)
	}
	if asked.group {
		known.value, _ = asked.outlook.cost(asked.outlook.open(p.newView(info), info), asked.kind)
		return max(known.value, 0), nil
	}
	known.value, _ = asked.outlook.cost(asked.outlook.account(p.viewOf(info), info), asked.kind)
	known.value, known.valued = max(known.value, 0), true
	asked.memo.put(info.GetGeneration(), known)
	return known.value, nil
}

// costUnit is the cost that counts as 1 in a node's score before normalization.
const costUnit = 1.0 / (1 << 40)

// score returns the score of a node with a value. Binpack prefers the nodes where the pod's GPUs
// become fullest, and spread the nodes where the pod's GPUs stay emptiest. Fragmentation prefers
// the nodes with the least cost.
func (p *Plugin) score(value float64) int64 {
	switch p.policy {
	case Fragmentation:
		return int64(value / costUnit)
	case config.PlaceSpread:
		return int64(math.Round(value * float64(fwk.MaxScore)))
	}
	return int64(math.Round((1 - value) * float64(fwk.MaxScore)))
}

// viewIn returns the view of a node in the pod's scheduling cycle.
func (p *Plugin) viewIn(asked *asking, info fwk.NodeInfo) *view {
	if asked.group {
		return p.newView(info)
	}
	return p.viewOf(info)
}

// here returns the request of a pod for the view's node, by the configuration of the node's pool. The
// request is restricted to the GPUs that the pod accepts.
func (p *Plugin) here(asked *asking, v *view, info fwk.NodeInfo) (request.Pod, error) {
	if v.err != nil {
		return request.Pod{}, v.err
	}
	pod := asked.Pod
	cfg, pool := p.nodes.For(info.Node().Labels)
	if pool != "" {
		var err error
		if pod, err = request.Read(asked.spec, cfg); err != nil {
			return request.Pod{}, err
		}
	}
	return choice.Obey(pod, asked.spec, v.GPUs, cfg)
}

// shortOn returns the pod's first resource of which the node's sum is too small; "" if all sums
// suffice. Kubelet checks the sums again.
func (a *asking) shortOn(info fwk.NodeInfo) string {
	all, used := info.GetAllocatable().GetScalarResources(), info.GetRequested().GetScalarResources()
	for _, name := range a.names {
		if a.units[name] > all[corev1.ResourceName(name)]-used[corev1.ResourceName(name)] {
			return name
		}
	}
	return ""
}
