// SPDX-License-Identifier: Apache-2.0

// Package resize reads and writes the annotations about the sizes of running containers' parts of GPUs.
// A user requests sizes in one annotation of the pod, and the node reports the sizes in force in
// another. A size is for each GPU of the container.
package resize

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

const (
	// Annotation is the annotation of pods with the requested sizes: a JSON object from container names
	// to a Size.
	Annotation = "nri-vgpu.io/resize"
	// ReportAnnotation is the annotation of pods with the node's answer: a JSON object from container
	// names to a Report.
	ReportAnnotation = "nri-vgpu.io/resized"
)

// These are the types of the conditions that a node sets on a pod, as kubelet does for CPU and memory.
const (
	ConditionPending    corev1.PodConditionType = "nri-vgpu.io/ResizePending"
	ConditionInProgress corev1.PodConditionType = "nri-vgpu.io/ResizeInProgress"
)

// These are the reasons why a requested size is not in force, in reports and conditions.
const (
	// Deferred is the reason of a size that the node cannot set yet. The node retries.
	Deferred = "Deferred"
	// Infeasible is the reason of a size that the node can never set.
	Infeasible = "Infeasible"
	// InProgress is the reason of a size whose setting failed on the way. The node retries.
	InProgress = "InProgress"
)

// These are the bounds of the requested sizes.
const (
	// mostBytes bounds an annotation, for request.MostAsking containers with long names.
	mostBytes = 64 << 10
	// mostMiB is 16 TiB, beyond any GPU.
	mostMiB = 16 << 20
)

// Size is the size of a container's part of each of its GPUs. In a request, fields that are 0 stand for
// the size at the container's placement. In a report, these fields stand for the size that the pod's
// spec requests.
type Size struct {
	// MemoryMiB is the memory, in MiB.
	MemoryMiB uint64 `json:"memory,omitempty"`
	// Cores is the part of the GPU's time, in percent.
	Cores uint32 `json:"cores,omitempty"`
}

// Report is the size in force, and the result of a request.
type Report struct {
	Size
	// Requested is the requested size that the report is about.
	Requested Size `json:"requested,omitzero"`
	// Pending is the reason why the requested size is not in force: Deferred, Infeasible or InProgress.
	// Pending is "" if it is in force.
	Pending string `json:"pending,omitempty"`
	Message string `json:"message,omitempty"`
}

// Apply returns shares with the size.
func (s Size) Apply(shares []request.Share) []request.Share {
	shares = slices.Clone(shares)
	for i := range shares {
		share := &shares[i]
		if s.MemoryMiB != 0 {
			share.Memory = request.Memory{Bytes: s.MemoryMiB * request.MiB}
		}
		if s.Cores != 0 {
			share.ComputePPM = s.Cores * (request.Whole / 100)
		}
		if share.MaximumPPM <= share.ComputePPM {
			share.MaximumPPM = 0
		}
		share.SplitPPM = 0
	}
	return shares
}

// Wanted returns the sizes that a pod's annotation requests, by container; none if the pod has no
// annotation. asked is the request of the pod's spec.
func Wanted(pod *corev1.Pod, asked request.Pod) (map[string]Size, error) {
	text, ok := pod.Annotations[Annotation]
	if !ok {
		return nil, nil
	}
	sizes, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", Annotation, err)
	}
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		if !asked.Asks(name) {
			return nil, fmt.Errorf("annotation %s: the pod has no container %q that requests a part of a GPU", Annotation, name)
		}
	}
	return sizes, nil
}

// Parse reads the text of Annotation.
func Parse(text string) (map[string]Size, error) {
	if len(text) > mostBytes {
		return nil, fmt.Errorf("the annotation has %d bytes; allowed: %d", len(text), mostBytes)
	}
	var sizes map[string]Size
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&sizes); err != nil {
		return nil, fmt.Errorf(`allowed: an object such as {"main": {"memory": 8192, "cores": 50}}, in MiB and percent of each GPU: %w`, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("allowed: one JSON object, and nothing after it")
	}
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		if err := sizes[name].Check(); err != nil {
			return nil, fmt.Errorf("container %q: %w", name, err)
		}
	}
	return sizes, nil
}

// Check returns an error if a size is out of bounds.
func (s Size) Check() error {
	if s.MemoryMiB > mostMiB {
		return fmt.Errorf("memory is %d; allowed: 1 to %d MiB", s.MemoryMiB, mostMiB)
	}
	if s.Cores > 100 {
		return fmt.Errorf("cores is %d; allowed: 1 to 100 percent", s.Cores)
	}
	return nil
}

// Format returns the text of an annotation with sizes or reports, by container.
func Format[T Size | Report](values map[string]T) (string, error) {
	text, err := json.Marshal(values)
	return string(text), err
}

// Reports returns the node's reports about a pod, by container. An annotation that cannot be read has
// none: only nodes may write it.
func Reports(pod *corev1.Pod) map[string]Report {
	text, ok := pod.Annotations[ReportAnnotation]
	if !ok || len(text) > mostBytes {
		return nil
	}
	var reports map[string]Report
	if err := json.Unmarshal([]byte(text), &reports); err != nil {
		return nil
	}
	return reports
}

// InForce returns the request of a pod with the sizes that its node reports. A reported size out of
// bounds changes nothing.
func InForce(asked request.Pod, pod *corev1.Pod) request.Pod {
	reports := Reports(pod)
	if len(reports) == 0 {
		return asked
	}
	resized := asked
	resized.Containers = slices.Clone(asked.Containers)
	for i := range resized.Containers {
		c := &resized.Containers[i]
		if r, ok := reports[c.Name]; ok && r.Size != (Size{}) && r.Check() == nil && c.Asks() {
			c.Shares = r.Apply(c.Shares)
		}
	}
	return resized
}
