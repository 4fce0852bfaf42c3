// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/ownnode"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// Patch is the change that a Node needs: units to set and names to remove. The
// zero value changes nothing.
//
// The patcher sends a Patch as a strategic merge patch to the status subresource, so that other
// conditions stay unchanged. Server-side apply is unsuitable: kubelet and any other program that
// sets one of the patcher's keys becomes a co-owner. The API server does not remove a key with
// another owner when the patcher stops applying the key. A merge patch states the outcome, needs no
// resourceVersion, and does not depend on earlier writers.
type Patch struct {
	Capacity    Change
	Allocatable Change
	// Annotation is the new value of ownnode.Advertised. nil does not change the annotation, and
	// a pointer to "" removes the annotation.
	Annotation *string
	// Annotations are annotations for schedulers; nil removes an annotation.
	Annotations map[string]*string
	// Labels are labels for the mode fit; nil removes a label.
	Labels map[string]*string
	// Condition is the condition to set; nil does not change the condition.
	Condition *corev1.NodeCondition
	// RemoveCondition removes the condition.
	RemoveCondition bool
}

// Change is the necessary change of one resource list.
type Change struct {
	Set    Resources
	Remove sets.Set[string]
}

// Plan compares a Node with the resources that it must advertise. Plan sets capacity and
// allocatable to equal values: kubelet's next status update would equalize the values only ten
// seconds later. Plan does not change resources that are neither desired nor the patcher's.
func Plan(node *corev1.Node, desired Resources, claimed sets.Set[string]) Patch {
	annotation, annotated := node.Annotations[ownnode.Advertised]
	own := claimed.Union(parseAdvertised(annotation))
	p := Patch{
		Capacity:    diff(node.Status.Capacity, desired, own),
		Allocatable: diff(node.Status.Allocatable, desired, own),
	}
	if want := formatAdvertised(desired); want != annotation || (want == "" && annotated) {
		p.Annotation = &want
	}
	return p
}

// planLabels returns the necessary changes of the Node's labels for the mode fit.
func planLabels(node *corev1.Node, desired map[string]string) map[string]*string {
	change := map[string]*string{}
	for name, value := range desired {
		if have, ok := node.Labels[name]; !ok || have != value {
			change[name] = &value
		}
	}
	for name := range node.Labels {
		if _, wanted := desired[name]; !wanted && isFitLabel(name) {
			change[name] = nil
		}
	}
	return change
}

func isFitLabel(name string) bool {
	return name == request.FitLabel || strings.HasPrefix(name, request.FitPrefix)
}

func diff(current corev1.ResourceList, desired Resources, own sets.Set[string]) Change {
	change := Change{Set: Resources{}, Remove: sets.New[string]()}
	for name, units := range desired {
		have, ok := current[corev1.ResourceName(name)]
		if !ok || have.CmpInt64(units) != 0 {
			change.Set[name] = units
		}
	}
	for name := range current {
		if _, wanted := desired[string(name)]; !wanted && own.Has(string(name)) {
			change.Remove.Insert(string(name))
		}
	}
	return change
}

// Empty reports whether the Node needs no change.
func (p Patch) Empty() bool {
	return p.onlyAnnotations() && len(p.Annotations) == 0 && p.Condition == nil && !p.RemoveCondition
}

// onlyCondition reports whether only the condition may need a change.
func (p Patch) onlyCondition() bool {
	return p.onlyAnnotations() && len(p.Annotations) == 0
}

// onlyAnnotations reports whether the resources, their annotation and the labels
// need no change.
func (p Patch) onlyAnnotations() bool {
	return p.Capacity.empty() && p.Allocatable.empty() && p.Annotation == nil && len(p.Labels) == 0
}

func (c Change) empty() bool { return len(c.Set) == 0 && len(c.Remove) == 0 }

// Resources returns the names that the patch sets or removes, sorted.
func (p Patch) Resources() []string {
	names := sets.New[string]()
	for _, c := range []Change{p.Capacity, p.Allocatable} {
		names = names.Union(sets.KeySet(c.Set)).Union(c.Remove)
	}
	return sets.List(names)
}

// mergePatch is a strategic merge patch. null removes a key, and a condition
// replaces the condition of its type.
type mergePatch struct {
	Metadata *mergeMetadata `json:"metadata,omitempty"`
	Status   *mergeStatus   `json:"status,omitempty"`
}

type mergeMetadata struct {
	Annotations map[string]*string `json:"annotations,omitempty"`
	Labels      map[string]*string `json:"labels,omitempty"`
}

type mergeStatus struct {
	Capacity    map[string]*string `json:"capacity,omitempty"`
	Allocatable map[string]*string `json:"allocatable,omitempty"`
	Conditions  []any              `json:"conditions,omitempty"`
}

// noCondition removes the condition of its type.
type noCondition struct {
	Type  corev1.NodeConditionType `json:"type"`
	Patch string                   `json:"$patch"`
}

// JSON returns the strategic merge patch for nodes/NAME/status.
func (p Patch) JSON() ([]byte, error) {
	var m mergePatch
	if p.Annotation != nil || len(p.Annotations) > 0 || len(p.Labels) > 0 {
		m.Metadata = &mergeMetadata{Annotations: map[string]*string{}, Labels: p.Labels}
		maps.Copy(m.Metadata.Annotations, p.Annotations)
	}
	if p.Annotation != nil {
		m.Metadata.Annotations[ownnode.Advertised] = p.Annotation
		if *p.Annotation == "" {
			m.Metadata.Annotations[ownnode.Advertised] = nil
		}
	}
	if !p.Capacity.empty() || !p.Allocatable.empty() || p.Condition != nil || p.RemoveCondition {
		m.Status = &mergeStatus{Capacity: p.Capacity.merge(), Allocatable: p.Allocatable.merge()}
	}
	if p.Condition != nil {
		m.Status.Conditions = []any{*p.Condition}
	}
	if p.RemoveCondition {
		m.Status.Conditions = []any{noCondition{ConditionReady, "delete"}}
	}
	body, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode merge patch: %w", err)
	}
	return body, nil
}

func (c Change) merge() map[string]*string {
	values := map[string]*string{}
	for name, units := range c.Set {
		quantity := resource.NewQuantity(units, resource.DecimalSI).String()
		values[name] = &quantity
	}
	for name := range c.Remove {
		values[name] = nil
	}
	return values
}
