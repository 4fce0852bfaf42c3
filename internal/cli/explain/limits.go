// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/finding"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// containers returns the pod's containers in an observation, and its time.
func (p Pod) containers(all []agentapi.Overview) (own []agentapi.Container, at time.Time) {
	for _, o := range all {
		for _, c := range o.Containers {
			if c.Namespace == p.Pod.Namespace && c.Pod == p.Pod.Name {
				own, at = append(own, c), o.At
			}
		}
	}
	return own, at
}

// held returns findings about the pod's GPUs: reached limits, limits that may not hold, and
// unhealthy GPUs.
func (p Pod) held() []finding.Finding {
	before, began := p.containers(p.Before)
	after, ended := p.containers(p.After)
	var all []finding.Finding
	for _, c := range after {
		for _, s := range c.GPUs {
			all = append(all, atMemoryLimit(c, s)...)
			all = append(all, metered(c, s)...)
			all = append(all, throttled(c, s, earlier(before, c, s), ended.Sub(began))...)
			if s.Unhealthy != "" {
				all = append(all, problem("gpu", "recreate the pod; on the node: nvidia-smi -q -i "+cmp.Or(s.MIG.Parent, s.UUID),
					"container %s is on GPU %s, which is unhealthy: %s", c.Container, s.Number(), s.Unhealthy))
			}
		}
	}
	return all
}

func earlier(before []agentapi.Container, c agentapi.Container, s agentapi.Share) *agentapi.Account {
	for _, b := range before {
		for _, had := range b.GPUs {
			if b.PodUID == c.PodUID && b.Container == c.Container && had.UUID == s.UUID {
				return had.Account
			}
		}
	}
	return nil
}

func atMemoryLimit(c agentapi.Container, s agentapi.Share) []finding.Finding {
	if s.Account == nil || s.Account.Refusals == 0 {
		return nil
	}
	return []finding.Finding{warning("memory", "request more memory of the GPU, or let the program use less (smaller batches, no growing cache)",
		"container %s was refused %d allocations at its limit: it uses %d of %d MiB of GPU %s, and the last refused allocation requested %d MiB (%s)",
		c.Container, s.Account.Refusals, s.Account.MemoryBytes>>20, s.MemoryLimitBytes>>20, s.Number(), roundUp(s.Account.RefusedBytes), s.Account.RefusedWay)}
}

// metered returns a finding if a container's limit on GPU time may not hold.
func metered(c agentapi.Container, s agentapi.Share) []finding.Finding {
	if s.Meter == nil || !s.Meter.Disagrees {
		return nil
	}
	return []finding.Finding{warning("meter", finding.MeterAdvice, "container %s was charged %.1f %% of the time of GPU %s, and used %.1f %% in %s by the driver's samples: %.1f points beyond the error of %d samples",
		c.Container, 100*s.Meter.Metered, s.Number(), 100*s.Meter.Observed, show.Seconds(s.Meter.Seconds), math.Abs(100*s.Meter.Disagreement), s.Meter.Samples)}
}

// ratioOf formats the ratio of observed to metered time, with its bounds.
func ratioOf(m *agentapi.Meter) string {
	if m == nil || m.Ratio == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f (%.2f to %.2f)", m.Ratio, m.Low, m.High)
}

func roundUp(bytes uint64) uint64 { return (bytes + 1<<20 - 1) >> 20 }

func throttled(c agentapi.Container, s agentapi.Share, before *agentapi.Account, between time.Duration) []finding.Finding {
	if s.ComputeLimitPPM == 0 || s.Account == nil || s.Account.ThrottledSeconds == 0 {
		return nil
	}
	rate := 0.0
	if before != nil && between > 0 {
		rate = max(s.Account.ThrottledSeconds-before.ThrottledSeconds, 0) / between.Seconds()
	}
	limit := float64(s.ComputeLimitPPM) / 10_000
	if rate < muchHeld && (s.Utilisation == nil || *s.Utilisation < nearLimit*limit) {
		return nil // the container was throttled earlier, not now
	}
	fix := fmt.Sprintf("the limit works as configured; for more time, request more (%svgpu-cores). To use other containers' idle time, set a maximum by the annotation %s<resource>, or %s: share, if the node lets pods choose",
		ownPrefix, request.MaximumAnnotation, request.PolicyAnnotation)
	switch {
	case s.ComputeMaximumPPM > 0 && s.Utilisation != nil && *s.Utilisation >= nearLimit*float64(s.ComputeMaximumPPM)/10_000:
		fix = fmt.Sprintf("the maximum works as configured; for more time, raise the maximum (%s<resource>)", request.MaximumAnnotation)
	case s.ComputeMaximumPPM > 0:
		fix = fmt.Sprintf("the container has its guarantee, and other containers use the rest; for more time, request more (%svgpu-cores)", ownPrefix)
	}
	return []finding.Finding{warning("time", fix,
		"container %s is throttled by its limit on GPU time: it uses %s of GPU %s, and its threads waited %.2f s of each second just now, %s in all",
		c.Container, show.TimeOfLimit(&s), s.Number(), rate, show.Seconds(s.Account.ThrottledSeconds))}
}
