// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"
)

// runner measures points.
type runner struct {
	machine   machine
	is        profile
	span      span
	reference span               // of the runs without limits
	unlimited map[string]outcome // by pattern, kernel length and quota
	// capacities are the GPU times of concurrent loads without limits, by kernel
	// lengths and quotas.
	capacities map[string]float64
}

func (r *runner) run(ctx context.Context, s step) (Record, error) {
	before := readPressure(pressureFile)
	record, err := r.measure(ctx, s)
	if ctx.Err() != nil {
		err = context.Cause(ctx) // the cancellation may have caused any error
	}
	if err != nil {
		return Record{}, fmt.Errorf("%s: %w", s.id, err)
	}
	record.Profile = r.is.name
	record.CPUPressurePercent = known(readPressure(pressureFile).since(before))
	return record, nil
}

func (r *runner) measure(ctx context.Context, s step) (Record, error) {
	if s.workload == latency {
		return r.latency(ctx, s)
	}
	return r.throughput(ctx, s)
}

func (r *runner) throughput(ctx context.Context, s step) (Record, error) {
	references := make([]outcome, len(s.loads))
	for i, l := range s.loads {
		var err error
		if references[i], err = r.withoutLimit(ctx, l); err != nil {
			return Record{}, fmt.Errorf("measure without limits: %w", err)
		}
	}
	span := r.span.of(s.loads)
	outcomes, attempts, err := r.undisturbed(ctx, s.loads, span)
	if err != nil {
		return Record{}, err
	}
	tenants := make([]Tenant, len(outcomes))
	for i, o := range outcomes {
		tenants[i] = tenantOf(s.loads[i], o, references[i], target(s, i, references[i]))
	}
	capacity := 100.0
	if len(s.loads) > 1 {
		if capacity, err = r.capacity(ctx, s.loads); err != nil {
			return Record{}, fmt.Errorf("measure side by side without limits: %w", err)
		}
	}
	record := recordOf(s, tenants, span, capacity)
	record.StalledPercent, record.Attempts = known(outcomes[0].stalled), attempts
	return record, nil
}

// The runner repeats a point, up to mostAttempts attempts, if the machine's processors stalled for
// more than stalledTooLong percent of the point's time.
const (
	stalledTooLong = 1
	mostAttempts   = 3
)

// undisturbed runs loads, and repeats the run if stalls disturbed the run. undisturbed returns the
// run with the fewest stalls.
func (r *runner) undisturbed(ctx context.Context, loads []load, s span) (best []outcome, attempts int, err error) {
	for attempts < mostAttempts {
		outcomes, err := r.machine.run(ctx, loads, s)
		if err != nil {
			return nil, attempts, err
		}
		attempts++
		if best == nil || outcomes[0].stalled < best[0].stalled {
			best = outcomes
		}
		if !(best[0].stalled > stalledTooLong) {
			break
		}
	}
	return best, attempts, nil
}

// target returns the GPU time that a load should get: the load's limit, or less if the load alone
// leaves the GPU idle. Under the policy "share", a single load should get all time that the load
// can use.
func target(s step, i int, reference outcome) float64 {
	usable := reference.share
	if math.IsNaN(usable) {
		usable = 100
	}
	if s.workload == share && len(s.loads) == 1 {
		return usable
	}
	return min(float64(s.loads[i].limit), usable)
}

func recordOf(s step, tenants []Tenant, span span, capacity float64) Record {
	record := Record{ID: s.id, Workload: s.workload, MeasuredS: span.measure.Seconds()}
	if len(tenants) == 1 {
		record.Tenant = &tenants[0]
		return record
	}
	record.Tenants, record.CapacityPercent = tenants, known(capacity)
	var shares, limits, fractions []float64
	for _, t := range tenants {
		shares = append(shares, t.Share())
		limits = append(limits, float64(t.LimitPercent))
		fractions = append(fractions, t.Share()/float64(t.LimitPercent))
	}
	record.JainIndex = known(jain(fractions))
	record.LostPercent = known(lost(shares, limits, capacity))
	return record
}

func tenantOf(l load, o, reference outcome, target float64) Tenant {
	calm := undisturbed(o.windows)
	t := Tenant{
		KernelUS:           l.kernelUS,
		Pattern:            l.pattern.name,
		LaunchUS:           float64(l.launch()) / float64(time.Microsecond),
		LimitPercent:       l.limit,
		UnlimitedPercent:   known(reference.share),
		TargetPercent:      round(target),
		GPUTimePercent:     known(o.share),
		MeteredPercent:     known(o.metered),
		CPUCores:           l.cores,
		ThroughputPercent:  round(100 * o.rate / reference.rate),
		FirstSecondPercent: known(o.firstSecond),
		Windows:            len(o.windows),
		WindowsDisturbed:   len(o.windows) - len(calm),
		LongestWindowMS:    round(float64(o.longestWindow) / float64(time.Millisecond)),
	}
	t.ErrorPoints = round(t.Share() - target)
	t.P99WindowErrorPoints = known(windowError(calm, target, 0.99))
	t.P99AllWindowsErrorPoints = known(windowError(o.windows, target, 0.99))
	return t
}

// capacity returns the GPU time of concurrent loads without limits and without the
// interposer.
func (r *runner) capacity(ctx context.Context, loads []load) (float64, error) {
	var lengths []float64
	for _, l := range loads {
		lengths = append(lengths, l.kernelUS, l.cores)
	}
	key := fmt.Sprint(lengths)
	if sum, ok := r.capacities[key]; ok {
		return sum, nil
	}
	free := slices.Clone(loads)
	for i := range free {
		free[i].limit = 0
	}
	outcomes, err := r.machine.run(ctx, free, r.reference)
	if err != nil {
		return 0, err
	}
	var sum float64
	for _, o := range outcomes {
		sum += o.share
	}
	r.capacities[key] = sum
	return sum, nil
}

// saturated is the GPU time of work that never leaves the GPU idle.
const saturated = 99

// withoutLimit returns the result of a load alone, without limits and without the interposer.
// withoutLimit caches results except for work that waits for processors, because the result depends
// on the processors' current load.
func (r *runner) withoutLimit(ctx context.Context, l load) (outcome, error) {
	key := fmt.Sprint(l.pattern.name, l.kernelUS, l.cores)
	if o, ok := r.unlimited[key]; ok {
		return o, nil
	}
	l.limit = 0
	outcomes, err := r.machine.run(ctx, []load{l}, r.reference)
	if err != nil {
		return outcome{}, err
	}
	if outcomes[0].share >= saturated || math.IsNaN(outcomes[0].share) {
		r.unlimited[key] = outcomes[0]
	}
	return outcomes[0], nil
}

// latency measures the periodic load three times: alone, beside the neighbour without limits, and
// beside the neighbour with limits.
func (r *runner) latency(ctx context.Context, s step) (Record, error) {
	periodic, neighbour := s.loads[0], s.loads[1]
	limits := [2]int{periodic.limit, neighbour.limit}
	span := r.span.ofTail()
	results := &Latencies{NeighbourKernelUS: neighbour.kernelUS}
	var err error
	periodic.limit, neighbour.limit = 0, 0
	if results.Alone, err = r.machine.latency(ctx, periodic, nil, span); err != nil {
		return Record{}, fmt.Errorf("measure alone: %w", err)
	}
	if results.TimeSlicing, err = r.machine.latency(ctx, periodic, &neighbour, span); err != nil {
		return Record{}, fmt.Errorf("measure by time-slicing: %w", err)
	}
	periodic.limit, neighbour.limit = limits[0], limits[1]
	if results.Limited, err = r.machine.latency(ctx, periodic, &neighbour, span); err != nil {
		return Record{}, fmt.Errorf("measure under limits: %w", err)
	}
	beside := Tenant{KernelUS: neighbour.kernelUS, Pattern: neighbour.pattern.name, LaunchUS: neighbour.kernelUS,
		LimitPercent: neighbour.limit, TargetPercent: float64(neighbour.limit),
		GPUTimePercent: results.Limited.NeighbourPercent, MeteredPercent: results.Limited.NeighbourMetered}
	if beside.GPUTimePercent != nil {
		beside.ErrorPoints = round(*beside.GPUTimePercent - beside.TargetPercent)
	}
	return Record{ID: s.id, Workload: s.workload, Tenants: []Tenant{beside}, Latencies: results, MeasuredS: span.measure.Seconds()}, nil
}

// expected returns the expected duration of a step, for the progress display.
func (r *runner) expected(s step) time.Duration {
	const start = 300 * time.Millisecond
	if s.workload == latency {
		return 3 * (start + periodicWarmup + r.span.ofTail().total())
	}
	return start + r.span.of(s.loads).total()
}
