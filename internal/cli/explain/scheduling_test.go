// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/cli/finding"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/fleet"
)

func TestScheduling(t *testing.T) {
	modern, old := fleet.Version{Release: "v1.37.1", Policies: true}, fleet.Version{Release: "v1.35.0"}
	missing := modern
	missing.FitMissing = true
	for name, tt := range map[string]struct {
		facts scheduling
		level finding.Level
		want  string
	}{
		"sums":                 {scheduling{mode: "sums", cluster: modern}, finding.OK, "v1.37.1 supports sums, fit and scheduler"},
		"sums, without policy": {scheduling{mode: "sums", cluster: missing}, finding.OK, "supports sums, fit and scheduler"},
		"sums of old":          {scheduling{mode: "sums", cluster: old}, finding.OK, "v1.35.0 does not support fit, which needs 1.36"},
		"scheduler of old":     {scheduling{mode: "scheduler", cluster: old}, finding.OK, "pods must name nri-vgpu-scheduler"},
		"fit":                  {scheduling{mode: "fit", cluster: modern, labelled: true}, finding.OK, "the mode is fit"},
		"fit of old":           {scheduling{mode: "fit", cluster: old, labelled: true}, finding.Problem, "v1.35.0 serves no MutatingAdmissionPolicies"},
		"fit without policy":   {scheduling{mode: "fit", cluster: missing, labelled: true}, finding.Problem, "lacks the chart's MutatingAdmissionPolicy"},
		"fit without labels":   {scheduling{mode: "fit", cluster: modern}, finding.Warning, "no label nri-vgpu.io/fit"},
		"unknown":              {scheduling{mode: "fit", err: errors.New("forbidden")}, finding.Warning, "forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			got := tt.facts.findings()
			if len(got) != 1 || got[0].Level != tt.level || !strings.Contains(got[0].Message, tt.want) || got[0].Check != "scheduling" {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// TestSchedulingNamesPodsOfAnotherMode checks that a finding names the pods that wait since another
// mode, and contains the commands.
func TestSchedulingNamesPodsOfAnotherMode(t *testing.T) {
	s := scheduling{mode: "sums", cluster: fleet.Version{Release: "v1.37.1", Policies: true}}
	for i := range mostLeft + 2 {
		s.left = append(s.left, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("pod-", i)}})
	}
	got := s.findings()
	if len(got) != 2 || got[0].Level != finding.OK || got[1].Level != finding.Problem || got[1].Check != "scheduling" {
		t.Fatalf("got %+v", got)
	}
	for text, wants := range map[string][]string{
		got[1].Message: {"12 pods were created before the mode became sums, and no node starts them: ns/pod-0, ns/pod-1", "ns/pod-9, and 2 more"},
		got[1].Fix:     {"kubectl delete pod -n ns pod-0; kubectl delete pod -n ns pod-1;"},
	} {
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%q lacks %q", text, want)
			}
		}
	}
}
