// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/exec"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
)

// pod returns an agent's pod.
func pod(node string, state corev1.ContainerState) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "nri-vgpu-x"},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: container}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: container, State: state}}},
	}
}

func TestAgentOf(t *testing.T) {
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	if a, ok := agentOf(pod("n1", runs)); !ok || a != (Agent{Node: "n1", Pod: "nri-vgpu-x", State: "Running"}) {
		t.Errorf("an agent that runs is %+v, %t", a, ok)
	}
	if a, _ := agentOf(pod("n1", runs)); a.Down != "" || a.Away() != "its pod nri-vgpu-x is not ready" {
		t.Errorf("one on a node without power is %+v, away: %q", a, a.Away())
	}
	ready := pod("n1", runs)
	ready.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if a, _ := agentOf(ready); !a.Ready || a.Away() != "" {
		t.Errorf("an agent that is ready is %+v, away: %q", a, a.Away())
	}
	crashes := pod("n1", corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 10s"}})
	crashes.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1, Message: "config.toml: line 3\n"}
	a, ok := agentOf(crashes)
	if !ok || a.Down == "" || a.State != "container agent: CrashLoopBackOff back-off 10s; container agent ended with 1: config.toml: line 3" {
		t.Errorf("an agent that crashes is %+v, %t", a, ok)
	}
	if a, ok := agentOf(pod("", runs)); ok {
		t.Errorf("one without a node is %+v", a)
	}
	patcher := pod("n1", runs)
	patcher.Spec.Containers[0].Name = "patcher"
	if a, ok := agentOf(patcher); ok {
		t.Errorf("the patcher is %+v", a)
	}
}

// TestWhyAnAgentWasNotAsked checks that errors about an agent that is down wrap ErrAway, which sets
// the exit status. Other errors do not wrap ErrAway.
func TestWhyAnAgentWasNotAsked(t *testing.T) {
	f := &Fleet{}
	err := f.run(t.Context(), Agent{Node: "n1", Pod: "x", Down: "it does not run", State: "CrashLoopBackOff"}, nil, nil)
	if !errors.Is(err, agentapi.ErrAway) || !strings.Contains(err.Error(), "CrashLoopBackOff") {
		t.Errorf("an agent that is down: %v", err)
	}
	failed := exec.CodeExitError{Err: errors.New("exit status 1"), Code: 1}
	for _, c := range []struct {
		complaint string
		err       error
		away      bool
		phrase    string
	}{
		{"", context.DeadlineExceeded, true, "on n1 within"},
		{`vgpuctl: unknown command "all" for "vgpuctl get"`, failed, false, "older version"},
		{"vgpuctl: the driver does not answer", failed, false, "the driver does not answer"},
		{"", errors.New("pods \"x\" is forbidden"), false, "forbidden"},
	} {
		err := explain(Agent{Node: "n1"}, c.complaint, c.err)
		if errors.Is(err, agentapi.ErrAway) != c.away || !strings.Contains(err.Error(), c.phrase) {
			t.Errorf("%v (%s): %v", c.err, c.complaint, err)
		}
	}
}

func TestLastSeen(t *testing.T) {
	at := func(minutes int) time.Time { return time.Date(2026, 3, 1, 12, minutes, 0, 0, time.UTC) }
	e := corev1.Event{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(at(1))}}
	for want, change := range []func(){
		func() {},
		func() { e.EventTime = metav1.NewMicroTime(at(2)) },
		func() { e.LastTimestamp = metav1.NewTime(at(3)) },
		func() { e.Series = &corev1.EventSeries{Count: 2, LastObservedTime: metav1.NewMicroTime(at(4))} },
	} {
		if change(); !LastSeen(e).Time.Equal(at(want + 1)) {
			t.Errorf("the event %+v was last seen at %v", e, LastSeen(e))
		}
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	var kept tail
	for range 10 {
		_, _ = kept.Write([]byte(strings.Repeat("x", maxStderr/2)))
	}
	_, _ = kept.Write([]byte("the end\n"))
	if got := kept.String(); len(got) > maxStderr || !strings.HasSuffix(got, "xthe end") {
		t.Errorf("%d bytes of the output were kept", len(got))
	}
}
