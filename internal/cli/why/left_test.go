// SPDX-License-Identifier: Apache-2.0

package why

import (
	"bytes"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

func TestLeftFrom(t *testing.T) {
	turn := map[corev1.ResourceName]int64{memory: 1, request.FitTurn: 1}
	of := func(scheduler string, limits map[corev1.ResourceName]int64) *corev1.Pod {
		p := pod("p", limits)
		p.Spec.SchedulerName = scheduler
		return p
	}
	bound, ended := of("default-scheduler", turn), of("default-scheduler", turn)
	bound.Spec.NodeName, ended.Status.Phase = "n", corev1.PodFailed
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		mode string
		want string
	}{
		"a turn, in fit":             {of("default-scheduler", turn), config.ScheduleByFit, ""},
		"a turn, in sums":            {of("default-scheduler", turn), config.ScheduleBySums, config.ScheduleByFit},
		"a turn, in scheduler":       {of("default-scheduler", turn), config.ScheduleByPlugin, config.ScheduleByFit},
		"no turn":                    {of("default-scheduler", map[corev1.ResourceName]int64{memory: 1}), config.ScheduleBySums, ""},
		"our scheduler, in sums":     {of(ownScheduler, map[corev1.ResourceName]int64{memory: 1}), config.ScheduleBySums, config.ScheduleByPlugin},
		"our scheduler, in fit":      {of(ownScheduler, map[corev1.ResourceName]int64{memory: 1}), config.ScheduleByFit, config.ScheduleByPlugin},
		"our scheduler":              {of(ownScheduler, map[corev1.ResourceName]int64{memory: 1}), config.ScheduleByPlugin, ""},
		"our scheduler, without GPU": {of(ownScheduler, map[corev1.ResourceName]int64{"cpu": 1}), config.ScheduleBySums, ""},
		"a bound pod":                {bound, config.ScheduleBySums, ""},
		"an ended pod":               {ended, config.ScheduleBySums, ""},
	} {
		if got := LeftFrom(tt.pod, tt.mode, config.Default().Dialects); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// TestLeftPodIsNamed checks that the explanation of a pod from another mode contains the command.
func TestLeftPodIsNamed(t *testing.T) {
	a := answer(t, pod("waiting", map[corev1.ResourceName]int64{memory: 1}))
	a.Mode, a.Left = config.ScheduleBySums, config.ScheduleByFit
	var out bytes.Buffer
	if err := a.Write(&out, 0); err != nil {
		t.Fatal(err)
	}
	const want = "The pod was created with scheduling.mode=fit, and no node starts it with scheduling.mode=sums. Delete it, so that its controller creates another: kubectl delete pod -n ns waiting\n"
	if !strings.Contains(out.String(), want) || a.Report().Conclusion+"\n" != want {
		t.Errorf("got\n%s", out.String())
	}
}
