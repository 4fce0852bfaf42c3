// SPDX-License-Identifier: Apache-2.0

// Package assign reads and writes the annotations through which nri-vgpu-scheduler and the nodes
// agree on GPUs. A Node's annotation lists the node's GPUs, and a pod's annotation assigns some of
// these GPUs to the pod's containers. The scheduler writes the assignment with the pod's binding.
// The spec decides the amounts, so that a forged assignment gets no more than the spec requests.
package assign

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// Annotation is the annotation of a pod that lists the GPUs of each container. The value is a JSON
// object from container names to lists of UUIDs. A list has one UUID for each share that the
// container requests. If the scheduler divided a share, the list has an entry for each piece. The
// entry consists of the UUID, a colon, and the piece's part of the GPU in parts per million.
const Annotation = "nri-vgpu.io/assigned"

// mostBytes bounds an assignment. The largest assignment is for request.MostAsking containers with
// request.MaxGPUs GPUs each.
const mostBytes = 128 << 10

// Format returns the annotation for the allocations of a pod's containers. asked are the requests
// that the allocations satisfy.
func Format(asked request.Pod, allocations []placement.Allocation) (string, error) {
	all := map[string][]string{}
	for _, a := range allocations {
		i := slices.IndexFunc(asked.Containers, func(c request.Container) bool { return c.Name == a.Container })
		if i < 0 {
			return "", fmt.Errorf("container %q has an allocation, but is not in the pod", a.Container)
		}
		devices := a.Devices
		for _, share := range asked.Containers[i].Shares {
			for rest := share.Memory.PPM; ; {
				if len(devices) == 0 {
					return "", fmt.Errorf("container %q has fewer GPUs than it requests", a.Container)
				}
				d := devices[0]
				devices = devices[1:]
				if share.SplitPPM == 0 || d.ComputePPM >= rest && rest == share.Memory.PPM {
					all[a.Container] = append(all[a.Container], d.UUID)
					break
				}
				all[a.Container] = append(all[a.Container], d.UUID+":"+strconv.FormatUint(uint64(d.ComputePPM), 10))
				if rest -= min(d.ComputePPM, rest); rest < share.SplitPPM {
					break
				}
			}
		}
		if len(devices) > 0 {
			return "", fmt.Errorf("container %q has more GPUs than it requests", a.Container)
		}
	}
	text, err := json.Marshal(all)
	return string(text), err
}

// Obey binds the shares of a pod to the GPUs of its assignment, and returns a pod without an
// assignment unchanged. Obey returns an error if the assignment contradicts the spec, the pod's
// other restrictions or the node's GPUs.
func Obey(asked request.Pod, pod *corev1.Pod, gpus []gpu.GPU) (request.Pod, error) {
	text, assigned := pod.Annotations[Annotation]
	if !assigned {
		return asked, nil
	}
	obeyed, err := Bind(asked, text, gpus)
	if err != nil {
		return request.Pod{}, fmt.Errorf("pod %s/%s: the agent cannot apply the assignment in annotation %s: %w", pod.Namespace, pod.Name, Annotation, err)
	}
	return obeyed, nil
}

// Bind binds the shares of a pod to the GPUs in the text of an assignment. All of them must be in gpus.
func Bind(asked request.Pod, text string, gpus []gpu.GPU) (request.Pod, error) {
	return bind(asked, text, func(uuid string) bool {
		return slices.ContainsFunc(gpus, func(g gpu.GPU) bool { return g.UUID == uuid })
	})
}

// BindAnywhere binds the shares of a pod as Bind does, even to GPUs that are gone.
func BindAnywhere(asked request.Pod, text string) (request.Pod, error) {
	return bind(asked, text, func(string) bool { return true })
}

func bind(asked request.Pod, text string, exists func(uuid string) bool) (request.Pod, error) {
	if len(text) > mostBytes {
		return request.Pod{}, fmt.Errorf("the annotation has %d bytes; allowed: %d", len(text), mostBytes)
	}
	var all map[string][]string
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return request.Pod{}, fmt.Errorf("the annotation is not a list of GPUs for each container: %w", err)
	}
	bound := asked
	bound.Containers = slices.Clone(asked.Containers)
	for i := range bound.Containers {
		c := &bound.Containers[i]
		entries, named := all[c.Name]
		delete(all, c.Name)
		if named != c.Asks() {
			return request.Pod{}, fmt.Errorf("container %q is in the annotation: %t; the container requests GPUs: %t", c.Name, named, c.Asks())
		}
		if !named {
			continue
		}
		var err error
		if c.Shares, err = bindShares(c.Shares, entries, exists); err != nil {
			return request.Pod{}, fmt.Errorf("container %q: %w", c.Name, err)
		}
	}
	for name := range all {
		return request.Pod{}, fmt.Errorf("the pod has no container %q", name)
	}
	return bound, nil
}

// bindShares returns the shares, and binds each share to a GPU of the entries. A divided share
// becomes one share for each piece.
func bindShares(shares []request.Share, entries []string, exists func(uuid string) bool) ([]request.Share, error) {
	var bound []request.Share
	for _, share := range shares {
		for rest := share.Memory.PPM; ; {
			if len(bound) == len(entries) {
				return nil, fmt.Errorf("the annotation has %d GPUs, fewer than the container requests", len(entries))
			}
			uuid, piece, err := parseEntry(entries[len(bound)], share, rest)
			if err != nil {
				return nil, err
			}
			if err := check(uuid, share, bound, exists); err != nil {
				return nil, err
			}
			one := share
			if piece != share.Memory.PPM {
				one = share.Piece(piece)
			}
			one.GPUs, one.SplitPPM = []string{uuid}, 0
			bound = append(bound, one)
			if rest -= piece; rest == 0 || rest < share.SplitPPM {
				break
			}
		}
	}
	if len(bound) < len(entries) {
		return nil, fmt.Errorf("the annotation has %d GPUs, and the container requests %d", len(entries), len(bound))
	}
	return bound, nil
}

// parseEntry returns the UUID of an entry, and the entry's piece of the share. rest is the part of
// the share that is not yet bound.
func parseEntry(entry string, share request.Share, rest uint32) (uuid string, piece uint32, err error) {
	uuid, part, divided := strings.Cut(entry, ":")
	if !divided && rest == share.Memory.PPM {
		return uuid, rest, nil
	}
	if share.SplitPPM == 0 {
		return "", 0, fmt.Errorf("%q is a piece of a share that nri-vgpu may not divide", entry)
	}
	ppm, err := strconv.ParseUint(part, 10, 32)
	if err != nil || ppm == 0 || ppm > uint64(rest) || ppm < uint64(rest) && ppm%uint64(share.SplitPPM) != 0 {
		return "", 0, fmt.Errorf("%q is not a piece of a share; allowed: the UUID, a colon, and %d or a smaller multiple of %d parts per million",
			entry, rest, share.SplitPPM)
	}
	return uuid, uint32(ppm), nil
}

// check returns an error if a share may not be on a GPU, even if the GPU has room.
func check(uuid string, share request.Share, bound []request.Share, exists func(uuid string) bool) error {
	switch {
	case !exists(uuid):
		return fmt.Errorf("GPU %q is not in this node", uuid)
	case slices.ContainsFunc(bound, func(before request.Share) bool { return before.GPUs[0] == uuid }):
		return fmt.Errorf("GPU %s is in the annotation twice", uuid)
	case len(share.GPUs) > 0 && !slices.Contains(share.GPUs, uuid):
		return fmt.Errorf("the pod's request does not allow GPU %s; allowed: %s", uuid, strings.Join(share.GPUs, ", "))
	}
	return nil
}
