// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

func TestCondition(t *testing.T) {
	now := time.Now()
	bare := &corev1.Node{}
	had := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Ready"}, {Type: ConditionReady}}}}
	seen := func(age time.Duration, registered bool, gpus ...gpu.GPU) Observation {
		return Observation{Report: &nodereport.Report{PluginRegistered: registered, GPUs: gpus, Sums: &nodereport.Sums{}}, Alive: now.Add(-age)}
	}
	healthy, lost := testGPU("GPU-a", true), testGPU("GPU-b", false)
	lost.Index, lost.Reason = 1, "fell off the bus"
	undivided := gpu.GPU{UUID: "GPU-c", Index: 2, Healthy: true, Undivided: true, Reason: "MIG mode is on"}
	tests := []struct {
		name     string
		node     *corev1.Node
		observed Observation
		want     string // "" is none
	}{
		{"not known yet", had, Observation{}, ""},
		{"no GPU ever", bare, seen(0, true), ""},
		{"no GPU ever, agent away", bare, seen(time.Hour, true), ""},
		{"all well", bare, seen(0, true, healthy), "True GPUsHealthy: GPUs that accept containers: 1"},
		{"all well, pods not known", had, Observation{Alive: now, Report: &nodereport.Report{PluginRegistered: true, GPUs: []gpu.GPU{healthy}}}, ""},
		{"one lost", had, seen(0, true, healthy, lost), "False GPUUnhealthy: 1 of 2 GPUs accept no new containers: GPU 1 (GPU-b): fell off the bus"},
		{"GPUs gone", had, seen(0, true), "False NoGPU: "},
		{"a GPU in MIG mode without devices", had, Observation{Alive: now, Report: &nodereport.Report{PluginRegistered: true, LeftOut: []gpu.GPU{undivided}}},
			"False NoGPU: nothing of GPU 2 (GPU-c) is offered: MIG mode is on"},
		{"another GPU beside it", had, Observation{Alive: now, Report: &nodereport.Report{PluginRegistered: true, GPUs: []gpu.GPU{healthy}, LeftOut: []gpu.GPU{undivided}, Sums: &nodereport.Sums{}}},
			"True GPUsHealthy: GPUs that accept containers: 1"},
		{"containers without limits", had, Observation{Alive: now,
			Report: &nodereport.Report{PluginRegistered: true, GPUs: []gpu.GPU{healthy}, Unadjusted: 2}}, "False ContainersUnadjusted: "},
		{"not registered", had, seen(0, false, healthy), "False PluginNotRegistered: "},
		{"agent away", had, seen(31*time.Second, true, healthy), "False AgentAway: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if c := condition(tt.observed, tt.node, 30*time.Second, now); c != nil {
				got = string(c.Status) + " " + c.Reason + ": " + c.Message
			}
			if !strings.HasPrefix(got, tt.want) || (got == "") != (tt.want == "") {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestConditionIsWrittenWhenItChanges(t *testing.T) {
	then, now := time.Unix(1000, 0), time.Unix(2000, 0)
	have := corev1.NodeCondition{
		Type: ConditionReady, Status: corev1.ConditionFalse, Reason: "GPUUnhealthy", Message: "one",
		LastHeartbeatTime: metav1.NewTime(then), LastTransitionTime: metav1.NewTime(then),
	}
	node := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{have}}}
	same := have
	if got := changed(node, &same, now); got != nil {
		t.Errorf("as it is, it is written: %+v", got)
	}
	if got := changed(node, nil, now); got != nil {
		t.Errorf("without a report, the condition is written: %+v", got)
	}
	other := have
	other.Message = "two"
	want := other
	want.LastHeartbeatTime = metav1.NewTime(now)
	if diff := cmp.Diff(&want, changed(node, &other, now)); diff != "" {
		t.Errorf("for another message: %s", diff)
	}
	other.Status = corev1.ConditionTrue
	want = other
	want.LastHeartbeatTime, want.LastTransitionTime = metav1.NewTime(now), metav1.NewTime(now)
	if diff := cmp.Diff(&want, changed(node, &other, now)); diff != "" {
		t.Errorf("for another status: %s", diff)
	}
}

// TestPatcherKeepsTheCondition checks that the patcher writes the Node's condition once per change
// of the report, and does not change conditions of other programs.
func TestPatcherKeepsTheCondition(t *testing.T) {
	t.Parallel()
	r := startRig(t, nativeOnly(), time.Minute)
	r.api.create()
	r.api.interfere(`{"status":{"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady"}]}}`)
	r.report(nil)
	r.awaitConditions("Ready=True KubeletReady, VGPUReady=True GPUsHealthy")
	before := r.api.patchCount()
	if before != 1 {
		t.Errorf("the first report took %d writes, want 1", before)
	}
	r.report(func(report *nodereport.Report) {
		lost := testGPU("GPU-b", false)
		lost.Reason = "lost"
		report.GPUs = append(report.GPUs, lost)
	})
	r.awaitConditions("Ready=True KubeletReady, VGPUReady=False GPUUnhealthy")
	if n := r.api.patchCount() - before; n != 1 {
		t.Errorf("a lost GPU took %d writes, want 1", n)
	}
	time.Sleep(polled)
	if n := r.api.patchCount() - before; n != 1 {
		t.Errorf("%d writes though nothing was to be done", n-1)
	}
}

func (r *rig) awaitConditions(want string) {
	r.t.Helper()
	if err := eventually.Wait(2*polled, want, func() bool { return r.api.conditions() == want }); err != nil {
		r.t.Fatalf("%v; the conditions are %q", err, r.api.conditions())
	}
}

func (a *nodeAPI) conditions() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []string
	for _, c := range a.node.Status.Conditions {
		all = append(all, string(c.Type)+"="+string(c.Status)+" "+c.Reason)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
