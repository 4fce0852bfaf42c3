// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/ownnode"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

func resourceList(pairs map[string]string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, quantity := range pairs {
		list[corev1.ResourceName(name)] = resource.MustParse(quantity)
	}
	return list
}

func TestPlan(t *testing.T) {
	type units = map[string]string
	tests := []struct {
		name                  string
		capacity, allocatable units
		annotation            string
		desired               Resources
		want                  string // the merge patch; "" is none
	}{
		{
			name:       "as it must be",
			capacity:   units{"cpu": "2", "own/a": "5"},
			annotation: "own/a", desired: Resources{"own/a": 5},
			allocatable: units{"cpu": "2", "own/a": "5"},
		},
		{
			name:       "equal in another notation",
			capacity:   units{"own/a": "5k"},
			annotation: "own/a", desired: Resources{"own/a": 5000},
			allocatable: units{"own/a": "5000"},
		},
		{
			name:     "first time",
			capacity: units{"cpu": "2"}, allocatable: units{"cpu": "2"},
			desired: Resources{"own/a": 5, "own/b": 7},
			want: `{"metadata":{"annotations":{"nri-vgpu.io/advertised":"own/a,own/b"}},` +
				`"status":{"capacity":{"own/a":"5","own/b":"7"},"allocatable":{"own/a":"5","own/b":"7"}}}`,
		},
		{
			name: "a Node without any status", desired: Resources{"own/a": 5},
			want: `{"metadata":{"annotations":{"nri-vgpu.io/advertised":"own/a"}},` +
				`"status":{"capacity":{"own/a":"5"},"allocatable":{"own/a":"5"}}}`,
		},
		{
			name:     "zeroed by kubelet",
			capacity: units{"own/a": "0"}, allocatable: units{"own/a": "0"},
			annotation: "own/a", desired: Resources{"own/a": 5},
			want: `{"status":{"capacity":{"own/a":"5"},"allocatable":{"own/a":"5"}}}`,
		},
		{
			name:     "too large",
			capacity: units{"own/a": "500"}, allocatable: units{"own/a": "500"},
			annotation: "own/a", desired: Resources{"own/a": 5},
			want: `{"status":{"capacity":{"own/a":"5"},"allocatable":{"own/a":"5"}}}`,
		},
		{
			name:     "kubelet has not copied capacity yet",
			capacity: units{"own/a": "5"}, annotation: "own/a", desired: Resources{"own/a": 5},
			want: `{"status":{"allocatable":{"own/a":"5"}}}`,
		},
		{
			name:     "an advertised name is no longer configured",
			capacity: units{"old/x": "3", "own/a": "5"}, allocatable: units{"old/x": "3", "own/a": "5"},
			annotation: "old/x,own/a", desired: Resources{"own/a": 5},
			want: `{"metadata":{"annotations":{"nri-vgpu.io/advertised":"own/a"}},` +
				`"status":{"capacity":{"old/x":null},"allocatable":{"old/x":null}}}`,
		},
		{
			name:       "withdrawal removes, other owners' resources stay",
			capacity:   units{"cpu": "2", "own/a": "5", "other/gpu": "1"},
			annotation: "own/a", allocatable: units{"cpu": "2", "own/a": "5", "other/gpu": "1"},
			want: `{"metadata":{"annotations":{"nri-vgpu.io/advertised":null}},` +
				`"status":{"capacity":{"own/a":null},"allocatable":{"own/a":null}}}`,
		},
		{
			name:     "withdrawal of a claimed name that somebody zeroed, annotation gone",
			capacity: units{"own/a": "0"}, allocatable: units{"own/a": "0"},
			want: `{"status":{"capacity":{"own/a":null},"allocatable":{"own/a":null}}}`,
		},
		{
			name: "withdrawn and gone", capacity: units{"cpu": "2"}, allocatable: units{"cpu": "2"},
		},
		{
			name:     "an empty annotation is removed",
			capacity: units{"own/a": "5"}, allocatable: units{"own/a": "5"},
			annotation: "own/a,", desired: Resources{"own/a": 5},
			want: `{"metadata":{"annotations":{"nri-vgpu.io/advertised":"own/a"}}}`,
		},
		{
			name:       "an annotation cannot make native resources ours",
			capacity:   units{"cpu": "2", "kubernetes.io/x": "1", "a.kubernetes.io/x": "1"},
			annotation: "cpu,kubernetes.io/x,a.kubernetes.io/x,/x,x/",
			want:       `{"metadata":{"annotations":{"nri-vgpu.io/advertised":null}}}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			node := &corev1.Node{Status: corev1.NodeStatus{
				Capacity: resourceList(tt.capacity), Allocatable: resourceList(tt.allocatable),
			}}
			if tt.annotation != "" {
				node.Annotations = map[string]string{ownnode.Advertised: tt.annotation}
			}
			patch := Plan(node, tt.desired, sets.New("own/a", "own/b"))
			if patch.Empty() != (tt.want == "") {
				t.Fatalf("Empty() is %v, the patch is %+v", patch.Empty(), patch)
			}
			if tt.want == "" {
				return
			}
			got, err := patch.JSON()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, string(got)); diff != "" {
				t.Errorf("patch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEnabledNamesLeavesDisabledDialectsAlone(t *testing.T) {
	cfg := nativeOnly()
	want := []string{request.FitTurn, "nri-vgpu.io/vgpu-cores", "nri-vgpu.io/vgpu-memory", "nri-vgpu.io/vgpu-memory-percentage", "nri-vgpu.io/vgpu-number"}
	if diff := cmp.Diff(want, sets.List(enabledNames(cfg.Dialects))); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}
