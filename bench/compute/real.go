// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"
)

// real is a machine with a real GPU that no other program uses. The GPU time of programs is
// unknown, so real only measures the throughput that programs report.
type real struct{ host *host }

func (*real) kind() string { return "real" }

func (r *real) run(ctx context.Context, loads []load, s span) (outcomes []outcome, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.total()*2+startTimeout)
	defer cancel()
	var tenants []tenant
	for _, l := range loads {
		t, err := r.host.startTenant(ctx, l, "--warmup", seconds(s.warmup), "--duration", seconds(s.measure))
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, t.stop()) }()
		tenants = append(tenants, t)
	}
	outcomes = make([]outcome, len(tenants))
	for i, t := range tenants {
		outcomes[i] = outcome{share: math.NaN(), metered: math.NaN(), firstSecond: math.NaN()}
		for _, p := range t.processes {
			rate, err := finishedRate(p)
			if err != nil {
				return nil, err
			}
			outcomes[i].rate += rate
		}
	}
	return outcomes, nil
}

// finishedRate waits for the workload "spin" and returns its kernels per second.
func finishedRate(p *process) (float64, error) {
	output, err := p.wait()
	if err != nil {
		return 0, err
	}
	var printed struct {
		Rate float64 `json:"kernels_per_s"`
	}
	if err := json.Unmarshal(output, &printed); err != nil {
		return 0, fmt.Errorf("read the output of spin: %w", err)
	}
	return printed.Rate, nil
}

// contextTime is the time in which a process must be ready.
const contextTime = time.Second

func (r *real) latency(ctx context.Context, periodic load, neighbour *load, s span) (result Latency, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.total()*2+startTimeout)
	defer cancel()
	if neighbour != nil {
		t, err := r.host.startTenant(ctx, *neighbour, "--duration", seconds(periodicWarmup+s.total()+startTimeout))
		if err != nil {
			return Latency{}, err
		}
		defer func() { err = errors.Join(err, t.stop()) }()
		time.Sleep(contextTime + s.warmup)
		if err := t.ended(); err != nil {
			return Latency{}, err
		}
	}
	p, err := startPeriodic(ctx, r.host, periodic, s.measure)
	if err != nil {
		return Latency{}, err
	}
	output, err := p.wait()
	if err != nil {
		return Latency{}, err
	}
	return parseLatency(output)
}
