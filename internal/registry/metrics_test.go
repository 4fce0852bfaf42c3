// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
)

func TestMetrics(t *testing.T) {
	h := newHouse(t)
	r := h.Registry
	processes, handles := h.sleepers(2, id)
	more, moreHandles := h.sleepers(1, otherID)
	for i, process := range append(processes, more...) {
		r.count(r.add(process, append(handles, moreHandles...)[i], nil))
	}
	r.count(Busy)
	r.countHeld(Answered)
	r.countHeld(Gone)
	r.countInvalid()
	// After a restart of a container, two ids have the container's name.
	name, idle := Name{"shop", "web", "main"}, Name{"shop", "db", "main"}
	m := Metrics{Registry: r, Names: func() map[string]Name {
		return map[string]Name{id: name, otherID: name, strings.Repeat("0", 64): idle}
	}}
	for metric, want := range map[string]string{
		"nri_vgpu_container_processes": `
# HELP nri_vgpu_container_processes ` + help(t, m, "nri_vgpu_container_processes") + `
# TYPE nri_vgpu_container_processes gauge
nri_vgpu_container_processes{container="main",namespace="shop",pod="db"} 0
nri_vgpu_container_processes{container="main",namespace="shop",pod="web"} 3
`,
		"nri_vgpu_registrations_total": `
# HELP nri_vgpu_registrations_total ` + help(t, m, "nri_vgpu_registrations_total") + `
# TYPE nri_vgpu_registrations_total counter
nri_vgpu_registrations_total{outcome="busy"} 1
nri_vgpu_registrations_total{outcome="foreign"} 0
nri_vgpu_registrations_total{outcome="full"} 0
nri_vgpu_registrations_total{outcome="gone"} 0
nri_vgpu_registrations_total{outcome="known"} 0
nri_vgpu_registrations_total{outcome="registered"} 3
`,
		"nri_vgpu_holdings_questions_total": `
# HELP nri_vgpu_holdings_questions_total ` + help(t, m, "nri_vgpu_holdings_questions_total") + `
# TYPE nri_vgpu_holdings_questions_total counter
nri_vgpu_holdings_questions_total{outcome="answered"} 1
nri_vgpu_holdings_questions_total{outcome="busy"} 0
nri_vgpu_holdings_questions_total{outcome="gone"} 1
nri_vgpu_holdings_questions_total{outcome="unanswered"} 0
`,
		"nri_vgpu_registrations_invalid_total": `
# HELP nri_vgpu_registrations_invalid_total ` + help(t, m, "nri_vgpu_registrations_invalid_total") + `
# TYPE nri_vgpu_registrations_invalid_total counter
nri_vgpu_registrations_invalid_total 1
`,
	} {
		if err := testutil.CollectAndCompare(m, strings.NewReader(want), metric); err != nil {
			t.Error(err)
		}
	}
}

// help returns the help text of a metric, which this test does not check.
func help(t *testing.T, m Metrics, metric string) string {
	t.Helper()
	text, err := testutil.CollectAndFormat(m, expfmt.TypeTextPlain, metric)
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return strings.TrimPrefix(line, "# HELP "+metric+" ")
}
