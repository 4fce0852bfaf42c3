// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func TestUnfinished(t *testing.T) {
	pod := func(node string, ready corev1.ConditionStatus, last string) corev1.Pod {
		p := corev1.Pod{Spec: corev1.PodSpec{NodeName: node}}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{{}}
		if last != "" {
			p.Status.InitContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Message: last + "\n"}
		}
		return p
	}
	waits := pod("waits", corev1.ConditionFalse, "")
	waits.Status.InitContainerStatuses[0].State.Waiting = &corev1.ContainerStateWaiting{Message: "no image"}
	pods := []corev1.Pod{
		pod("done", corev1.ConditionTrue, "tried before"), pod("fails", corev1.ConditionFalse, "the agent runs"),
		waits, pod("begins", corev1.ConditionFalse, ""), pod("away", corev1.ConditionFalse, ""),
	}
	ready := map[string]bool{"done": true, "fails": true, "waits": true, "begins": true}
	want := []string{"fails (the agent runs)", "waits (no image)", "begins"}
	if diff := cmp.Diff(want, unfinished(pods, ready)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
