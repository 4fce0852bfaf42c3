// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"errors"
	"strings"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/internal/cli/doctor"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/fleet"
)

func TestScheduling(t *testing.T) {
	modern, old := fleet.Version{Release: "v1.37.1", Policies: true}, fleet.Version{Release: "v1.35.0"}
	missing := modern
	missing.FitMissing = true
	for name, tt := range map[string]struct {
		facts scheduling
		level doctor.Level
		want  string
	}{
		"sums":                 {scheduling{mode: "sums", cluster: modern}, doctor.OK, "v1.37.1 supports sums, fit and scheduler"},
		"sums, without policy": {scheduling{mode: "sums", cluster: missing}, doctor.OK, "supports sums, fit and scheduler"},
		"sums of old":          {scheduling{mode: "sums", cluster: old}, doctor.OK, "v1.35.0 does not support fit, which needs 1.36"},
		"scheduler of old":     {scheduling{mode: "scheduler", cluster: old}, doctor.OK, "pods must name nri-vgpu-scheduler"},
		"fit":                  {scheduling{mode: "fit", cluster: modern, labelled: true}, doctor.OK, "the mode is fit"},
		"fit of old":           {scheduling{mode: "fit", cluster: old, labelled: true}, doctor.Problem, "v1.35.0 serves no MutatingAdmissionPolicies"},
		"fit without policy":   {scheduling{mode: "fit", cluster: missing, labelled: true}, doctor.Problem, "lacks the chart's MutatingAdmissionPolicy"},
		"fit without labels":   {scheduling{mode: "fit", cluster: modern}, doctor.Warning, "no label nri-vgpu.io/fit"},
		"unknown":              {scheduling{mode: "fit", err: errors.New("forbidden")}, doctor.Warning, "forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			got := tt.facts.findings()
			if len(got) != 1 || got[0].Level != tt.level || !strings.Contains(got[0].Message, tt.want) || got[0].Check != "scheduling" {
				t.Errorf("got %+v", got)
			}
		})
	}
}
