// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/cli/finding"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/fleet"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/why"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// scheduling contains the facts about the mode of scheduling.
type scheduling struct {
	mode    string
	cluster fleet.Version
	// labelled reports whether the Node has the labels of the mode fit.
	labelled bool
	// left are the waiting pods from another mode, which no scheduler can bind.
	left []corev1.Pod
	err  error
}

func gatherScheduling(ctx context.Context, f *fleet.Fleet, labels map[string]string) (s scheduling) {
	file, err := f.Config(ctx)
	if err != nil {
		return scheduling{err: err}
	}
	cfg, _ := file.For(labels)
	s.mode, s.labelled = cfg.Scheduling.Mode, labels[request.FitLabel] != ""
	if s.cluster, s.err = f.Version(ctx); s.err != nil {
		return s
	}
	waiting, err := f.PodsOn(ctx, "")
	s.err = err
	for i := range waiting {
		if why.LeftFrom(&waiting[i], s.mode, cfg.Dialects) != "" {
			s.left = append(s.left, waiting[i])
		}
	}
	return s
}

// mostLeft bounds the pods that a finding names.
const mostLeft = 10

// findings reports whether the cluster supports the mode, which modes the cluster supports, and which
// pods wait since another mode.
func (s scheduling) findings() []finding.Finding {
	findings := s.support()
	if len(s.left) == 0 {
		return findings
	}
	named := s.left[:min(len(s.left), mostLeft)]
	var names, commands []string
	for i := range named {
		names = append(names, named[i].Namespace+"/"+named[i].Name)
		commands = append(commands, fmt.Sprintf("kubectl delete pod -n %s %s", named[i].Namespace, named[i].Name))
	}
	if more := len(s.left) - len(named); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return append(findings, problem("scheduling", "delete them, so that their controllers create others: "+strings.Join(commands, "; "),
		"%d pods were created before the mode became %s, and no node starts them: %s", len(s.left), s.mode, strings.Join(names, ", ")))
}

// support reports whether the cluster supports the mode, and which modes the cluster supports.
func (s scheduling) support() []finding.Finding {
	const check, choose = "scheduling", "choose another mode: docs/how-to/schedule.md"
	switch {
	case s.err != nil:
		return []finding.Finding{warning(check, "", "failed to read the mode of scheduling: %v", s.err)}
	case s.mode == config.ScheduleByFit && !s.cluster.Policies:
		return []finding.Finding{problem(check, choose,
			"the mode is fit, and Kubernetes %s serves no MutatingAdmissionPolicies: pods have no conditions, and nodes may refuse pods", s.cluster.Release)}
	case s.mode == config.ScheduleByFit && s.cluster.FitMissing:
		return []finding.Finding{problem(check, "install with the chart: docs/how-to/fit.md",
			"the mode is fit, and the cluster lacks the chart's MutatingAdmissionPolicy: pods have no conditions, and nodes may refuse pods")}
	case s.mode == config.ScheduleByFit && !s.labelled:
		return []finding.Finding{warning(check, "see the other findings, and the logs of agent and patcher",
			"the mode is fit, and the Node has no label %s: the scheduler compares only sums", request.FitLabel)}
	case !s.cluster.Policies:
		return []finding.Finding{fine(check, "the mode is %s; Kubernetes %s does not support fit, which needs 1.36, and in the mode scheduler pods must name nri-vgpu-scheduler",
			s.mode, s.cluster.Release)}
	}
	return []finding.Finding{fine(check, "the mode is %s; Kubernetes %s supports sums, fit and scheduler", s.mode, s.cluster.Release)}
}
