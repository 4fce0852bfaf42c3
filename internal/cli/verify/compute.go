// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// native is the result of a load without limits.
type native struct {
	lengthUS float64 // of a kernel on the GPU, including the gap after it
	reach    float64 // GPU time used, in percent
}

// spun is the report of the workload "spin".
type spun struct {
	Kernels float64 `json:"kernels"`
	Wall    float64 `json:"wall_s"`
	Event   float64 `json:"event_time_s"`
}

// share returns the GPU time that kernels of this length took, in percent.
func (s spun) share(lengthUS float64) float64 { return 100 * s.Kernels * lengthUS / 1e6 / s.Wall }

// spin returns the arguments of the workload for a load.
func (v *run) spin(l load, warmup, measure time.Duration) []string {
	args := append([]string{"spin"}, l.pattern.args...)
	args = append(args, "--kernel-us", strconv.FormatFloat(l.kernelUS, 'f', -1, 64),
		"--warmup", seconds(warmup), "--duration", seconds(measure))
	if l.pattern.graph {
		args = append(args, "--graph-nodes", strconv.Itoa(l.nodes()))
	}
	if l.pattern.fills {
		const blocksOfOne = 32 // the most blocks that a multiprocessor runs at once
		args = append(args, "--blocks", strconv.Itoa(max(1, v.start.Multiprocessors)*blocksOfOne))
	}
	return args
}

// times returns the durations of warm-up and measurement. The durations are long enough
// that a single launch has little weight.
func (v *run) times(l load) (warmup, measure time.Duration) {
	warmup, measure = 500*time.Millisecond, v.measure()
	if l.launch() >= 10*time.Millisecond {
		warmup, measure = 2*warmup, 2*measure
	}
	return warmup, measure
}

// native measures a load without limits and caches the result. A load that waits for each launch
// leaves the GPU idle. For a load that waits, native measures the length of the kernels with a load
// that does not wait.
func (v *run) native(ctx context.Context, l load) (native, error) {
	l.limit = 0
	if known, ok := v.natives[l.String()]; ok {
		return known, nil
	}
	var s spun
	measure := max(300*time.Millisecond, 10*l.launch())
	if err := v.runWith(ctx, 2*measure, hold{}, l.pattern.env, &s, v.spin(l, measure/4, measure)...); err != nil {
		return native{}, fmt.Errorf("measure the native speed: %w", err)
	}
	n := native{lengthUS: 1e6 * s.Event / s.Kernels}
	if l.pattern.waits {
		steady, err := v.native(ctx, load{oneStream, l.kernelUS, 0})
		if err != nil {
			return native{}, err
		}
		n.lengthUS = steady.lengthUS
	}
	n.reach = min(100, s.share(n.lengthUS))
	v.natives[l.String()] = n
	return n, nil
}

// compute measures the GPU time of concurrent tenants: the number of kernels that they
// complete, times a kernel's length without limits.
func (v *run) compute(ctx context.Context, tenants ...load) Row {
	natives := make([]native, len(tenants))
	sum := 100.0
	for i, l := range tenants {
		var err error
		if natives[i], err = v.native(ctx, l); err != nil {
			return skipped("%v", err)
		}
	}
	if len(tenants) > 1 {
		free, err := v.together(ctx, natives, unlimited(tenants))
		if err != nil {
			return skipped("without limits: %v", err)
		}
		sum = 0
		for i, s := range free {
			sum += s.share(natives[i].lengthUS)
		}
	}
	spins, err := v.together(ctx, natives, tenants)
	if err != nil {
		return broken(err)
	}
	return judged(tenants, natives, spins, sum)
}

// judged returns the row for the measured tenants.
func judged(tenants []load, natives []native, spins []spun, sum float64) Row {
	var all []measured
	var shares []Share
	var longest time.Duration // the tenants' measurements start and end at different times
	for _, l := range tenants {
		longest = max(longest, l.launch())
	}
	for i, l := range tenants {
		n, s := natives[i], spins[i]
		m := measured{
			limit: float64(l.limit), got: s.share(n.lengthUS), reach: n.reach, sum: sum,
			cut: 100 * longest.Seconds() / s.Wall,
		}
		all = append(all, m)
		shares = append(shares, Share{l.pattern.name, l.kernelUS, n.lengthUS, n.reach, m.limit, m.got})
	}
	r := row(judgeShares(all))
	r.Shares = shares
	return r
}

// unlimited returns the same tenants without limits.
func unlimited(tenants []load) []load {
	free := make([]load, len(tenants))
	for i, l := range tenants {
		free[i] = load{l.pattern, l.kernelUS, 0}
	}
	return free
}

// together runs tenants concurrently, for the longest duration that any tenant needs.
func (v *run) together(ctx context.Context, natives []native, tenants []load) ([]spun, error) {
	var warmup, measure time.Duration
	for _, l := range tenants {
		w, m := v.times(l)
		warmup, measure = max(warmup, w), max(measure, m)
	}
	waits := make([]func(any) error, 0, len(tenants))
	var errs []error
	for _, l := range tenants {
		wait, err := v.startWith(ctx, warmup+measure, hold{cores: l.limit}, l.pattern.env, v.spin(l, warmup, measure)...)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		waits = append(waits, wait)
	}
	spins := make([]spun, len(natives))
	for i, wait := range waits {
		errs = append(errs, wait(&spins[i]))
	}
	return spins, errors.Join(errs...)
}
