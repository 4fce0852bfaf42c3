// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"slices"
)

// timed is a call that servers make.
type timed struct {
	name  string
	count int // calls in one round
	rules map[string]rule
}

// under bounds the cost of a call above the native cost, in ns, on all sides with the
// interposer. A second bound applies under a limit on GPU time.
func under(mostNs float64, withTimeLimit ...float64) map[string]rule {
	rules := map[string]rule{}
	for _, side := range []string{limited, whole, capped} {
		rules[side] = rule{bounded: true, mostNs: mostNs}
	}
	for _, ns := range withTimeLimit {
		rules[capped] = rule{bounded: true, mostNs: ns}
	}
	return rules
}

// The numbers of calls make a round much longer than reading the clock, and shorter than a time
// slice of a busy machine. Launches are the shortest calls and need more repetitions, because cold
// caches at the start of a process's turn distort short series. The simulator queues up to 1024
// launches. Calls of meminfo-apart are half a millisecond apart, and the first call of a turn does
// not count.
var (
	// bareCalls run on the fastest driver of the simulator.
	bareCalls = []timed{
		{"async", 200, under(150)},
		{"alloc", 200, nil},
		{"meminfo", 200, under(0)},
		{"meminfo-apart", 10, under(150)},
		{"launch", 1000, under(20, 100)},
	}
	// h200Calls run on a driver with the timings of an H200.
	h200Calls = []timed{
		{"async", 200, under(150)},
		{"alloc", 10, nil},
		{"meminfo", 200, under(0)},
		{"meminfo-apart", 10, under(150)},
		{"launch", 1000, under(60, 150)},
	}
)

// inTurns measures all sides in each round, one after another. Successive rounds start with
// different sides, so that no side has an advantage.
func inTurns(sides []string, rounds int, measure func(side string) (float64, error)) (map[string][]float64, error) {
	samples := map[string][]float64{}
	for round := range rounds {
		for i := range sides {
			side := sides[(round+i)%len(sides)]
			ns, err := measure(side)
			if err != nil {
				return nil, err
			}
			samples[side] = append(samples[side], ns)
		}
	}
	return samples, nil
}

// calls times the calls of running processes. calls starts new processes for each
// run, because the random placement of a process's memory influences the result as
// much as all rounds together.
func (s *site) calls(ctx context.Context, calls []timed, runs, rounds int) ([]Result, error) {
	samples := map[string][]map[string][]float64{} // by call, run and side
	for range runs {
		if err := s.callRun(ctx, calls, rounds, samples); err != nil {
			return nil, err
		}
	}
	var results []Result
	for _, call := range calls {
		results = append(results, compare(s.driver, call.name, call.count, callSides, samples[call.name], call.rules)...)
	}
	return results, nil
}

func (s *site) callRun(ctx context.Context, calls []timed, rounds int, samples map[string][]map[string][]float64) (err error) {
	servers := map[string]*server{}
	defer func() {
		for _, server := range servers {
			err = errors.Join(err, server.end())
		}
	}()
	for _, side := range callSides {
		if servers[side], err = s.serve(ctx, side); err != nil {
			delete(servers, side)
			return err
		}
	}
	for _, call := range calls {
		measure := func(side string) (float64, error) { return servers[side].time(call.name, call.count) }
		if _, err := inTurns(callSides, rounds/10+1, measure); err != nil { // warm up
			return err
		}
		run, err := inTurns(callSides, rounds, measure)
		if err != nil {
			return err
		}
		samples[call.name] = append(samples[call.name], run)
	}
	return nil
}

const millisecond = 1e6 // ns

// starts times processes that start one at a time.
func (s *site) starts(ctx context.Context, rounds int) ([]Result, error) {
	opened := map[string][]float64{}
	inits, err := inTurns(startSides, rounds, func(side string) (float64, error) {
		said, err := s.once(ctx, side)
		opened[side] = append(opened[side], said.StartNs)
		return said.InitNs, err
	})
	if err != nil {
		return nil, err
	}
	bound := rule{bounded: true, mostNs: millisecond}
	rules := map[string]rule{limited: bound, whole: bound}
	return slices.Concat(compare(s.driver, "init", 1, startSides, one(inits), rules),
		compare(s.driver, "open+init", 1, startSides, one(opened), rules)), nil
}

// storms times processes that start at once.
func (s *site) storms(ctx context.Context, rounds, processes int, bound rule) ([]Result, error) {
	cpu := map[string][]float64{}
	walls, err := inTurns(startSides, rounds, func(side string) (float64, error) {
		said, err := s.storm(ctx, side, processes)
		cpu[side] = append(cpu[side], said.CPUNs)
		return said.Ns, err
	})
	if err != nil {
		return nil, err
	}
	rules := map[string]rule{limited: bound, whole: bound}
	return slices.Concat(compare(s.driver, "storm", processes, startSides, one(walls), rules),
		compare(s.driver, "storm, CPU", processes, startSides, one(cpu), nil)), nil
}

// one returns the samples in the form of a single run.
func one(samples map[string][]float64) []map[string][]float64 {
	return []map[string][]float64{samples}
}
