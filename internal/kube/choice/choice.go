// SPDX-License-Identifier: Apache-2.0

// Package choice restricts a pod's request to the GPUs that the pod's annotations allow, and sets the
// pod's policy of placement. The annotations contain the wishes of the pod's author, and the assignment
// by Volcano's scheduler. The package has no side effects.
package choice

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/volcano"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// wishes are the annotations by which a pod's author chooses GPUs. Commas separate the elements of
// lists. An empty list restricts nothing.
type wishes struct {
	useType, noUseType string // parts of the GPUs' names
	useUUID, noUseUUID string
	mode               string // how the GPU is shared; "" if there is no annotation
	// useWins reports whether a list of unwanted GPUs is ignored beside a list of wanted GPUs.
	useWins bool
}

// These annotations choose GPUs for the containers of every dialect.
const (
	UseType   = "nri-vgpu.io/use-gpu-type"
	NoUseType = "nri-vgpu.io/nouse-gpu-type"
	UseUUID   = "nri-vgpu.io/use-gpu-uuid"
	NoUseUUID = "nri-vgpu.io/nouse-gpu-uuid"
)

// These annotations choose the policy of placement among the GPUs of the pod's node. The pod's policy
// overrides the node's.
const (
	Policy = "nri-vgpu.io/placement-policy"
	// hamisPolicy applies to pods with requests in HAMi's dialect.
	hamisPolicy = "hami.io/gpu-scheduler-policy"
)

var own = wishes{useType: UseType, noUseType: NoUseType, useUUID: UseUUID, noUseUUID: NoUseUUID}

// others are the wishes for the containers of one dialect, with the rules of the original system.
var others = map[string]wishes{
	request.DialectVolcano: {
		useType: "nvidia.com/use-gputype", noUseType: "nvidia.com/nouse-gputype",
		useUUID: "volcano.sh/vgpu-use-gpuuuid", noUseUUID: "volcano.sh/vgpu-nouse-gpuuuid",
		mode:    "volcano.sh/vgpu-mode",
		useWins: true,
	},
	request.DialectHAMi: {
		useType: "nvidia.com/use-gputype", noUseType: "nvidia.com/nouse-gputype",
		useUUID: "nvidia.com/use-gpuuuid", noUseUUID: "nvidia.com/nouse-gpuuuid",
		mode: "nvidia.com/vgpu-mode",
	},
}

// Reads reports whether this package reads an annotation of a pod.
func Reads(annotation string) bool {
	if volcano.Reads(annotation) || slices.Contains(append(own.keys(), Policy, hamisPolicy), annotation) {
		return true
	}
	for _, w := range others {
		if slices.Contains(w.keys(), annotation) {
			return true
		}
	}
	return false
}

// Obey restricts the shares of a pod to the GPUs that the pod's wishes allow, and sets the pod's policy
// of placement. Obey also binds the shares to the GPUs that Volcano's scheduler assigned. Obey returns
// an error if no GPU of the node is allowed, if the policy is unknown, or if the assignment is not
// allowed.
func Obey(asked request.Pod, pod *corev1.Pod, gpus []gpu.GPU, cfg config.Config) (request.Pod, error) {
	restricted, err := restrict(asked, pod.Annotations, gpus, cfg.Sharing)
	if err == nil {
		restricted.Policy, err = policyOf(restricted, pod.Annotations)
	}
	if err != nil {
		return request.Pod{}, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return volcano.Obey(restricted, pod, gpus, cfg)
}

// policyOf returns the policy of placement that the pod chooses, or "" if the pod chooses none. HAMi
// has further policies, which leave the choice to the node.
func policyOf(asked request.Pod, annotations map[string]string) (string, error) {
	known := []string{config.PlaceBinpack, config.PlaceSpread}
	if chosen, ok := annotations[Policy]; ok {
		if !slices.Contains(known, chosen) {
			return "", fmt.Errorf("annotation %s is %q; allowed: %s", Policy, chosen, strings.Join(known, ", "))
		}
		return chosen, nil
	}
	list := annotations[hamisPolicy]
	inHAMi := func(c request.Container) bool { return c.Dialect == request.DialectHAMi }
	if len(list) > mostBytes || !slices.ContainsFunc(asked.Containers, inHAMi) {
		return "", nil
	}
	for _, chosen := range elements(list) {
		if slices.Contains(known, chosen) {
			return chosen, nil
		}
	}
	return "", nil
}

// restrict returns the pod with shares that accept only allowed GPUs.
func restrict(asked request.Pod, annotations map[string]string, gpus []gpu.GPU, sharing config.Sharing) (request.Pod, error) {
	containers := slices.Clone(asked.Containers)
	for i := range containers {
		c := &containers[i]
		if len(c.Shares) == 0 {
			continue
		}
		for _, w := range []wishes{own, others[c.Dialect]} {
			var err error
			if c.Shares, err = w.restrict(c.Shares, annotations, gpus, sharing); err != nil {
				return request.Pod{}, err
			}
		}
	}
	asked.Containers = containers
	return asked, nil
}

// keys returns the wishes' annotations.
func (w wishes) keys() []string {
	keys := []string{w.useType, w.noUseType, w.useUUID, w.noUseUUID, w.mode}
	return slices.DeleteFunc(keys, func(key string) bool { return key == "" })
}

// restrict returns shares that accept only the GPUs that the wishes allow.
func (w wishes) restrict(shares []request.Share, annotations map[string]string, gpus []gpu.GPU, sharing config.Sharing) ([]request.Share, error) {
	set := slices.DeleteFunc(w.keys(), func(key string) bool { return strings.TrimSpace(annotations[key]) == "" })
	if len(set) == 0 {
		return shares, nil
	}
	for _, key := range set {
		if length := len(annotations[key]); length > mostBytes {
			return nil, fmt.Errorf("annotation %s has %d bytes; allowed: %d", key, length, mostBytes)
		}
	}
	var allowed []string
	for _, g := range gpus {
		if w.allow(g, annotations, sharing) {
			allowed = append(allowed, g.UUID)
		}
	}
	restricted := slices.Clone(shares)
	for i := range restricted {
		share := &restricted[i]
		if share.GPUs = both(share.GPUs, allowed); len(share.GPUs) == 0 {
			return nil, fmt.Errorf("the pod's annotations (%s) allow no GPU of the node", strings.Join(set, ", "))
		}
	}
	return restricted, nil
}

// mostBytes bounds an annotation. The runtime waits while restrict compares each element of a list with
// each GPU.
const mostBytes = 16 << 10

// both returns the GPUs in allowed that a share accepts. A share without GPUs accepts any GPU.
func both(accepted, allowed []string) []string {
	if len(accepted) == 0 {
		return allowed
	}
	return slices.DeleteFunc(slices.Clone(accepted), func(uuid string) bool { return !slices.Contains(allowed, uuid) })
}

// allow reports whether the wishes allow a GPU.
func (w wishes) allow(g gpu.GPU, annotations map[string]string, sharing config.Sharing) bool {
	kind := strings.ToUpper(volcano.TypeOf(g))
	isType := func(part string) bool { return strings.Contains(kind, strings.ToUpper(part)) }
	isGPU := func(uuid string) bool { return uuid == g.UUID || uuid == g.Card() }
	isMode := func(mode string) bool {
		switch mode {
		case volcano.HAMiCore: // every GPU is shared through a library in its containers
			return true
		case volcano.MIG:
			return gpu.IsMIG(g.UUID)
		}
		return mode == volcano.MPS && sharing.ByMPS(g.UUID)
	}
	return w.wanted(annotations[w.useType], annotations[w.noUseType], isType) &&
		w.wanted(annotations[w.useUUID], annotations[w.noUseUUID], isGPU) &&
		w.wanted(annotations[w.mode], "", isMode)
}

// wanted reports whether a GPU is in the list use, unless the list is empty, and not in the list noUse.
func (w wishes) wanted(use, noUse string, is func(string) bool) bool {
	wants, refuses := elements(use), elements(noUse)
	if len(wants) > 0 {
		return slices.ContainsFunc(wants, is) && (w.useWins || !slices.ContainsFunc(refuses, is))
	}
	return !slices.ContainsFunc(refuses, is)
}

// elements returns the elements of a list that are not empty.
func elements(list string) []string {
	var all []string
	for one := range strings.SplitSeq(list, ",") {
		if one = strings.TrimSpace(one); one != "" {
			all = append(all, one)
		}
	}
	return all
}
