// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"math"
	"regexp"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/finding"
)

// Meter is the difference between a container's charged and its observed GPU time.
// Disagreement is the part beyond the error of the observation, as a fraction of the GPU's
// time.
type Meter struct {
	Container, UUID string
	Disagreement    float64
}

const disagreementSeries = "nri_vgpu_container_meter_disagreement_ratio{"

// label matches the labels of a series. Names of Kubernetes objects need no unquoting.
var label = regexp.MustCompile(`(\w+)="([^"]*)"`)

// parseMeter parses a disagreement series of the agent. The second result is false for
// another series.
func parseMeter(series string, value float64) (Meter, bool) {
	labels, ok := strings.CutPrefix(series, disagreementSeries)
	if !ok {
		return Meter{}, false
	}
	values := map[string]string{}
	for _, found := range label.FindAllStringSubmatch(labels, -1) {
		values[found[1]] = found[2]
	}
	return Meter{
		Container: fmt.Sprintf("%s/%s/%s", values["namespace"], values["pod"], values["container"]),
		UUID:      values["uuid"], Disagreement: value,
	}, true
}

// checkMeter checks that containers used the GPU time that they were charged.
func checkMeter(f Facts) []finding.Finding {
	if f.Agent.Err != nil || len(f.Agent.Meters) == 0 {
		return nil
	}
	var all []finding.Finding
	for _, m := range f.Agent.Meters {
		more := "more"
		if m.Disagreement < 0 {
			more = "less"
		}
		if points := math.Abs(m.Disagreement); points > agentapi.MeterTolerance {
			all = append(all, found(finding.Warning, finding.MeterAdvice, "container %s used %s of the time of %s than its charge, by %.1f points beyond the driver's sampling error", m.Container, more, m.UUID, 100*points))
		}
	}
	if len(all) > 0 {
		return all
	}
	return ok("the driver observes the GPU time that %d containers with a limit are charged", len(f.Agent.Meters))
}
