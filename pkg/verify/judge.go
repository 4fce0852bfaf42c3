package verify

import (
	"fmt"
	"strings"
	"time"
)

// points is how far a share may be from its limit, in percent of the GPU's time.
const points = 2

// measured is what a tenant had beside what it was to have. All are in percent of the GPU's
// time.
type measured struct {
	limit, got float64
	// reach is what the same work has without a limit: one that waits for each launch
	// cannot fill the GPU.
	reach float64
	// cut is one launch, the longest of all tenants: a measurement may begin or end in it.
	cut float64
	// sum is what tenants that saturate the GPU together have without limits; the rest
	// is lost at switches between them.
	sum float64
}

// bounds returns the least and the most that a tenant may have.
func (m measured) bounds() (least, most float64) {
	return min(m.limit*min(m.sum, 100)/100, m.reach) - points - m.cut, m.limit + points + m.cut
}

// judgeShares judges what tenants had of the GPU's time.
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

// outOfMemory is CUDA_ERROR_OUT_OF_MEMORY, the only right answer to a request beyond
// the limit.
const outOfMemory = 2

// tolerance is the part of a limit on memory that may be left ungranted.
const tolerance = 0.01

// filled is what one process took until it was refused, in bytes.
type filled struct {
	limit   uint64
	granted uint64 // as the process counted
	context uint64 // of a process, measured without limits
	held    uint64 // of the GPU, by NVML
	piece   uint64 // the size that the driver gives the way's pieces, 0 where it is asked for
	err     int    // the driver's answer to the last request
	// vague: NVML does not know what a process holds, so that contexts are estimated.
	vague bool
	// short: without a limit the way does not reach so far either.
	short bool
}

// used is what the process has by its own count and by NVML's, whichever is more.
func (f filled) used() uint64 { return max(f.granted+f.context, f.held) }

// spare is what may be left ungranted.
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

// judgeMemory judges where a way of allocating stopped.
func judgeMemory(f filled) (v Verdict, bound, figure string) {
	bound = fmt.Sprintf("%d B or less, error %d, %d B or less left", f.limit, outOfMemory, f.spare())
	figure = fmt.Sprintf("%d B (granted %d B, NVML %d B), error %d", f.used(), f.granted, f.held, f.err)
	within := f.used() <= f.limit && f.err == outOfMemory
	if within && (f.short || f.limit-f.used() <= f.spare()) {
		return Holds, bound, figure
	}
	return DoesNotHold, bound, figure
}

// played is what came of a scene.
type played struct {
	took   time.Duration
	broken int // captures
	hangs  bool
	err    string
}

// sceneSlack is what may be added to a scene's time: the start, and 100 ms for each kind of
// work that is new, which waits so long for its first measure.
const sceneSlack = 300 * time.Millisecond

// judgeScene judges a scene under limits beside the same without: with a part of the GPU's
// time it takes in proportion longer at most.
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

// waiting is how long a short kernel took that was launched now and then.
type waiting struct {
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
}

// latencySlack is what the limits may add, in ms.
const latencySlack = 0.1

// judgeLatency judges a short kernel's latency beside a tenant that saturates the GPU, both
// under limits, by the latency without limits: that of plain time slicing.
func judgeLatency(native, limited waiting) (v Verdict, bound, figure string) {
	bound = fmt.Sprintf("p99 %.2f ms or less", native.P99+latencySlack)
	figure = fmt.Sprintf("p99 %.2f ms, p50 %.2f ms (natively %.2f, %.2f)", limited.P99, limited.P50, native.P99, native.P50)
	if limited.P99 > native.P99+latencySlack {
		return DoesNotHold, bound, figure
	}
	return Holds, bound, figure
}
