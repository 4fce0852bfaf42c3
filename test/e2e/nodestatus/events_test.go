// SPDX-License-Identifier: Apache-2.0

package nodestatus_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// event returns an Event that an agent on a node reports.
func event(reporter, node string) *eventsv1.Event {
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "e-", Namespace: system}, EventTime: metav1.NewMicroTime(time.Now()),
		ReportingController: reporter, ReportingInstance: node, Action: "Refuse", Reason: "VGPURefused", Type: corev1.EventTypeWarning,
		Regarding: corev1.ObjectReference{Kind: "Pod", Namespace: system, Name: "p"}, Note: "n",
	}
}

// TestAgentMayWriteItsOwnEvents checks that the agent's token can write the Events of its own
// node's agent, and cannot change other Events.
func TestAgentMayWriteItsOwnEvents(t *testing.T) {
	cfg, err := credentials(t.Context(), plane.admin, "nri-vgpu", "reports")
	if err != nil {
		t.Fatal(err)
	}
	admin, stolen := clientOf(t, plane.admin).EventsV1().Events(system), clientOf(t, cfg).EventsV1().Events(system)
	eventually.Holds(t, 10*time.Second, "the policy is in force", func() bool {
		_, err := stolen.Create(t.Context(), event("kubelet", "reports"), metav1.CreateOptions{})
		return refused(err)
	})
	patch := func(e *eventsv1.Event) error {
		_, err := stolen.Patch(t.Context(), e.Name, types.MergePatchType,
			[]byte(`{"series":{"count":2,"lastObservedTime":"2026-03-01T12:00:00.000000Z"}}`), metav1.PatchOptions{})
		return err
	}
	for _, tt := range []struct {
		name, reporter, node string
		allowed              bool
	}{
		{"its own", events.Controller, "reports", true},
		{"another node's", events.Controller, "elsewhere", false},
		{"kubelet's", "kubelet", "reports", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			check := func(doing string, err error) {
				t.Helper()
				if tt.allowed && err != nil || !tt.allowed && !refused(err) {
					t.Errorf("%s: got %v, allowed: %v", doing, err, tt.allowed)
				}
			}
			_, err := stolen.Create(t.Context(), event(tt.reporter, tt.node), metav1.CreateOptions{})
			check("written", err)
			there, err := admin.Create(t.Context(), event(tt.reporter, tt.node), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			check("counted", patch(there))
		})
	}
}
