// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/cli/finding"
)

// examine returns the doctor's findings on the node.
func examine(t *testing.T) map[string]finding.Finding {
	t.Helper()
	// The exit status shows that the doctor found a problem; the output lists the findings.
	out, err := bed.Vgpuctl(t.Context(), "doctor", "-o", "json")
	var findings []finding.Finding
	if json.Unmarshal([]byte(out), &findings) != nil {
		t.Fatalf("the doctor reports %q: %v", out, err)
	}
	if (err == nil) != finding.Sound(findings) {
		t.Errorf("the doctor's exit status is %v, with the findings %+v", err, findings)
	}
	worst := map[string]finding.Finding{}
	for _, f := range findings {
		if have, ok := worst[f.Check]; !ok || have.Level == finding.OK || f.Level == finding.Problem {
			worst[f.Check] = f
		}
	}
	return worst
}

func TestDoctor(t *testing.T) {
	guarded(t)
	waitRegistered(t)
	for check, f := range examine(t) {
		if f.Level != finding.OK {
			t.Errorf("%s: %+v", check, f)
		}
	}
	if got := examine(t)["runtime"]; !strings.Contains(got.Message, "containerd 2.") {
		t.Errorf("the runtime is %+v", got)
	}
	examineFromAfar(t, true, "Node "+bed.Cluster.NodeName, "ok  condition", "ok  runtime", "ok  guard", "ok  kubelet", "containerd 2.")

	inject(t, "--gpu", "1", "lost")
	waitCondition(t, corev1.ConditionFalse, bed.UUIDs[1])
	examineFromAfar(t, false, "VGPUReady is False", "GPU 1 ("+bed.UUIDs[1]+") is unhealthy and gets no new containers: ", "fallen off the bus", "→ nvidia-smi -q -i "+bed.UUIDs[1])
	if err := bed.Inject("clear"); err != nil {
		t.Fatal(err)
	}
	waitCondition(t, corev1.ConditionTrue, "2")

	back := away(t)
	examineFromAfar(t, false, "no pod of nri-vgpu's agent is on this node", "describe daemonset")
	if out, err := bed.KubectlVgpu(t.Context(), "get", "gpus"); err == nil || !strings.Contains(err.Error(), "exit status 3: ") {
		t.Errorf("without an agent kubectl vgpu prints %q, %v, want exit status 3", out, err)
	}
	if got := examine(t)["agent"]; got.Level != finding.Problem || got.Fix == "" {
		t.Errorf("without the agent: %+v", got)
	}
	back()
}

// examineFromAfar checks the findings and the exit status of kubectl vgpu doctor, which connects
// through the API server.
func examineFromAfar(t *testing.T, sound bool, wants ...string) {
	t.Helper()
	printsWith(t, []string{"doctor", bed.Cluster.NodeName}, sound, wants...)
}
