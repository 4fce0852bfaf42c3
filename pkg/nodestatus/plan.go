package nodestatus

import (
	"encoding/json"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Patch is what must change on a Node: units to set and names to remove. Its
// zero value changes nothing.
//
// It is sent as a strategic merge patch to the status subresource, which leaves
// other conditions alone. Server-side
// apply was considered and refused: kubelet and whoever else sets one of our
// keys becomes its owner beside us, and a key with another owner is not
// removed when we stop applying it. A merge patch states the outcome, needs
// no resourceVersion, and is the same whoever wrote before.
type Patch struct {
	Capacity    Change
	Allocatable Change
	// Annotation is the new value of AdvertisedAnnotation; nil leaves it,
	// a pointer to "" removes it.
	Annotation *string
	// Volcano are annotations for its scheduler; nil removes one.
	Volcano map[string]*string
	// Condition is to be set; nil leaves it.
	Condition *corev1.NodeCondition
	// RemoveCondition removes it.
	RemoveCondition bool
}

// Change is the difference of one resource list.
type Change struct {
	Set    Resources
	Remove sets.Set[string]
}

// Plan compares a Node with what it must advertise. Capacity and allocatable
// are held equal: kubelet would make them so at its next status update, but
// only ten seconds later. Resources that are neither desired nor our own stay
// untouched.
func Plan(node *corev1.Node, desired Resources, claimed sets.Set[string]) Patch {
	annotation, annotated := node.Annotations[AdvertisedAnnotation]
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

// Empty tells whether the Node is as it must be.
func (p Patch) Empty() bool {
	return p.onlyVolcano() && len(p.Volcano) == 0 && p.Condition == nil && !p.RemoveCondition
}

// onlyCondition tells whether all else is as it must be.
func (p Patch) onlyCondition() bool {
	return p.onlyVolcano() && len(p.Volcano) == 0
}

// onlyVolcano tells whether the resources, and the list of them, are as they
// must be.
func (p Patch) onlyVolcano() bool {
	return p.Capacity.empty() && p.Allocatable.empty() && p.Annotation == nil
}

func (c Change) empty() bool { return len(c.Set) == 0 && len(c.Remove) == 0 }

// Resources are the names that the patch sets or removes, sorted.
func (p Patch) Resources() []string {
	names := sets.New[string]()
	for _, c := range []Change{p.Capacity, p.Allocatable} {
		names = names.Union(sets.KeySet(c.Set)).Union(c.Remove)
	}
	return sets.List(names)
}

// mergePatch is a strategic merge patch, in which null removes a key, and a
// condition replaces the one of its type.
type mergePatch struct {
	Metadata *mergeMetadata `json:"metadata,omitempty"`
	Status   *mergeStatus   `json:"status,omitempty"`
}

type mergeMetadata struct {
	Annotations map[string]*string `json:"annotations"`
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

// JSON is the patch as a strategic merge patch for nodes/NAME/status.
func (p Patch) JSON() ([]byte, error) {
	var m mergePatch
	if p.Annotation != nil || len(p.Volcano) > 0 {
		m.Metadata = &mergeMetadata{Annotations: map[string]*string{}}
		maps.Copy(m.Metadata.Annotations, p.Volcano)
	}
	if p.Annotation != nil {
		m.Metadata.Annotations[AdvertisedAnnotation] = p.Annotation
		if *p.Annotation == "" {
			m.Metadata.Annotations[AdvertisedAnnotation] = nil
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
