// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"fmt"
	"strings"
	"time"
)

// points is the tolerated difference between a share and its limit, in percent of the GPU's
// time.
const points = 2

// measured is a tenant's measured GPU time and the values that bound it. All values are in percent
// of the GPU's time.
type measured struct {
	limit, got float64
	// reach is the GPU time of the same work without a limit. A load that waits for each
	// launch cannot saturate the GPU.
	reach float64
	// cut is the longest launch of any tenant, because a measurement may start or end
	// within a launch.
	cut float64
	// sum is the total GPU time of saturating tenants without limits. Switches between the tenants
	// take the rest.
	sum float64
}

// bounds returns the least and the greatest GPU time that a tenant may use.
func (m measured) bounds() (least, most float64) {
	return min(m.limit*min(m.sum, 100)/100, m.reach) - points - m.cut, m.limit + points + m.cut
}

// judgeShares judges the GPU time of tenants.
func judgeShares(tenants []measured) (v Verdict, bound, figure string) {
	v = Holds
	var bounds, figures []string
	for _, m := range tenants {
		least, most := m.bounds()
		if m.got < least || m.got > most {
			v = DoesNotHold
		}
		bounds = append(bounds, fmt.Sprintf("%.1f to %.1f %%", max(least, 0), most))
		figures = append(figures, fmt.Sprintf("%.2f %%", m.got))
	}
	return v, strings.Join(bounds, ", "), strings.Join(figures, ", ")
}

// outOfMemory is CUDA_ERROR_OUT_OF_MEMORY, the only correct error for a request above the
// limit.
const outOfMemory = 2

// tolerance is the fraction of a memory limit that may remain ungranted.
const tolerance = 0.01

// filled is the memory that one process allocated until an allocation failed, in bytes.
type filled struct {
	limit   uint64
	granted uint64 // as the process counted
	context uint64 // of a process, measured without limits
	held    uint64 // of the GPU, as NVML reports
	piece   uint64 // size that the driver chooses for the way's pieces, 0 if the program requests sizes
	err     int    // the driver's result of the last request
	// vague means that NVML does not report the memory of processes, so that contexts are
	// estimated.
	vague bool
	// short means that the way of allocating fails below the limit even without limits.
	short bool
}

// used returns the larger of the process's own count and NVML's count.
func (f filled) used() uint64 { return max(f.granted+f.context, f.held) }

// spare returns the amount that may remain ungranted.
func (f filled) spare() uint64 {
	spare := uint64(tolerance * float64(f.limit))
	if f.vague {
		spare = max(spare, 2*f.context)
	}
	if f.piece > 0 {
		spare = max(spare, f.piece-1)
	}
	return spare
}

// judgeMemory judges the amount at which a way of allocating failed.
func judgeMemory(f filled) (v Verdict, bound, figure string) {
	bound = fmt.Sprintf("%d B or less, error %d, %d B or less left", f.limit, outOfMemory, f.spare())
	figure = fmt.Sprintf("%d B (granted %d B, NVML %d B), error %d", f.used(), f.granted, f.held, f.err)
	within := f.used() <= f.limit && f.err == outOfMemory
	if within && (f.short || f.limit-f.used() <= f.spare()) {
		return Holds, bound, figure
	}
	return DoesNotHold, bound, figure
}

// played is the result of a scene.
type played struct {
	took   time.Duration
	broken int // captures
	hangs  bool
	err    string
}

// sceneSlack is the time that limits may add to a scene. The time covers the start, and up to 100
// ms for each new kind of work until its first measurement.
const sceneSlack = 300 * time.Millisecond

// judgeScene judges a scene under limits against the scene without limits. With a part of the GPU's
// time, the scene may take proportionally longer.
func judgeScene(native, limited played, percent int) (v Verdict, bound, figure string) {
	most := native.took*105/time.Duration(percent) + sceneSlack
	bound = fmt.Sprintf("%v or less, %d broken captures or less", rounded(most), native.broken)
	figure = fmt.Sprintf("%v, %d broken (natively %v, %d)", rounded(limited.took), limited.broken, rounded(native.took), native.broken)
	if limited.hangs {
		return DoesNotHold, bound, "it hangs"
	}
	if limited.err != "" || limited.took > most || limited.broken > native.broken {
		return DoesNotHold, bound, figure
	}
	return Holds, bound, figure
}

func rounded(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

// waiting holds the latencies of a short kernel that is launched periodically.
type waiting struct {
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
}

// latencySlack is the latency that limits may add, in ms.
const latencySlack = 0.1

// judgeLatency judges a short kernel's latency beside a tenant that saturates the GPU, both
// under limits. The reference is the latency without limits, under plain time slicing.
func judgeLatency(native, limited waiting) (v Verdict, bound, figure string) {
	bound = fmt.Sprintf("p99 %.2f ms or less", native.P99+latencySlack)
	figure = fmt.Sprintf("p99 %.2f ms, p50 %.2f ms (natively %.2f, %.2f)", limited.P99, limited.P50, native.P99, native.P50)
	if limited.P99 > native.P99+latencySlack {
		return DoesNotHold, bound, figure
	}
	return Holds, bound, figure
}
