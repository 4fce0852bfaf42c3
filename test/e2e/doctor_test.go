package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/pkg/doctor"
)

// examine is what the doctor finds on the node.
func examine(t *testing.T) map[string]doctor.Finding {
	t.Helper()
	// Its exit status tells that it found something; what, its output.
	out, err := bed.Vgpuctl(t.Context(), "doctor", "-o", "json")
	var findings []doctor.Finding
	if json.Unmarshal([]byte(out), &findings) != nil {
		t.Fatalf("the doctor says %q: %v", out, err)
	}
	if (err == nil) != doctor.Sound(findings) {
		t.Errorf("its exit status: %v, and it found %+v", err, findings)
	}
	worst := map[string]doctor.Finding{}
	for _, f := range findings {
		if have, ok := worst[f.Check]; !ok || have.Level == doctor.OK || f.Level == doctor.Problem {
			worst[f.Check] = f
		}
	}
	return worst
}

func TestDoctor(t *testing.T) {
	guarded(t)
	waitRegistered(t)
	for check, f := range examine(t) {
		if f.Level != doctor.OK {
			t.Errorf("%s: %+v", check, f)
		}
	}
	if got := examine(t)["runtime"]; !strings.Contains(got.Message, "containerd 2.") {
		t.Errorf("the runtime is %+v", got)
	}
	back := away(t)
	if got := examine(t)["agent"]; got.Level != doctor.Problem || got.Mend == "" {
		t.Errorf("without the agent: %+v", got)
	}
	back()
}
