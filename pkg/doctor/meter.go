package doctor

import (
	"fmt"
	"math"
	"regexp"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/pkg/selfcheck"
)

// MendMeter is what to do where metered GPU time is not what the driver observes.
const MendMeter = "docs/operations.md#vgpumeterdisagrees says what it may come from; nri_vgpu_container_distrusted_probes_total counts by cause"

// Meter is how far what one container was charged is from what the driver observed, beyond
// the error of that, as a part of the GPU's time.
type Meter struct {
	Container, UUID string
	Disagreement    float64
}

const disagreementSeries = "nri_vgpu_container_meter_disagreement_ratio{"

// label finds the labels of a series. Names of Kubernetes objects need no quoting.
var label = regexp.MustCompile(`(\w+)="([^"]*)"`)

// parseMeter reads one of the agent's series.
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

// checkMeter looks whether containers had the GPU time that they were charged.
func checkMeter(f Facts) []Finding {
	if f.Agent.Err != nil || len(f.Agent.Meters) == 0 {
		return nil
	}
	var all []Finding
	for _, m := range f.Agent.Meters {
		more := "more"
		if m.Disagreement < 0 {
			more = "less"
		}
		if points := math.Abs(m.Disagreement); points > selfcheck.Tolerance {
			all = append(all, found(Warning, MendMeter, "container %s had %s of the time of %s than it was charged, by %.1f points beyond the driver's sampling error", m.Container, more, m.UUID, 100*points))
		}
	}
	if len(all) > 0 {
		return all
	}
	return ok("the driver observes the GPU time that %d containers with a limit are charged", len(f.Agent.Meters))
}
