// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"

	"github.com/nri-vgpu/nri-vgpu/internal/cli/doctor"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/fleet"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// scheduling contains the facts about the mode of scheduling.
type scheduling struct {
	mode    string
	cluster fleet.Version
	// labelled reports whether the Node has the labels of the mode fit.
	labelled bool
	err      error
}

func gatherScheduling(ctx context.Context, f *fleet.Fleet, labels map[string]string) (s scheduling) {
	file, err := f.Config(ctx)
	if err != nil {
		return scheduling{err: err}
	}
	cfg, _ := file.For(labels)
	s.mode, s.labelled = cfg.Scheduling.Mode, labels[request.FitLabel] != ""
	s.cluster, s.err = f.Version(ctx)
	return s
}

// findings reports whether the cluster supports the mode, and which modes the cluster supports.
func (s scheduling) findings() []doctor.Finding {
	const check, choose = "scheduling", "choose another mode: docs/how-to/schedule.md"
	switch {
	case s.err != nil:
		return []doctor.Finding{warning(check, "", "failed to read the mode of scheduling: %v", s.err)}
	case s.mode == config.ScheduleByFit && !s.cluster.Policies:
		return []doctor.Finding{problem(check, choose,
			"the mode is fit, and Kubernetes %s serves no MutatingAdmissionPolicies: pods have no conditions, and nodes may refuse pods", s.cluster.Release)}
	case s.mode == config.ScheduleByFit && s.cluster.FitMissing:
		return []doctor.Finding{problem(check, "install with the chart: docs/how-to/fit.md",
			"the mode is fit, and the cluster lacks the chart's MutatingAdmissionPolicy: pods have no conditions, and nodes may refuse pods")}
	case s.mode == config.ScheduleByFit && !s.labelled:
		return []doctor.Finding{warning(check, "see the other findings, and the logs of agent and patcher",
			"the mode is fit, and the Node has no label %s: the scheduler compares only sums", request.FitLabel)}
	case !s.cluster.Policies:
		return []doctor.Finding{fine(check, "the mode is %s; Kubernetes %s does not support fit, which needs 1.36, and in the mode scheduler pods must name nri-vgpu-scheduler",
			s.mode, s.cluster.Release)}
	}
	return []doctor.Finding{fine(check, "the mode is %s; Kubernetes %s supports sums, fit and scheduler", s.mode, s.cluster.Release)}
}
