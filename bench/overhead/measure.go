package main

import (
	"context"
	"errors"
)

// timed is a call that servers make.
type timed struct {
	name  string
	count int // calls in one round
	rules map[string]rule
}

// noMore is for calls that are not to cost more than natively.
var noMore = map[string]rule{limited: {bounded: true}, whole: {bounded: true}}

// timedCalls have so many calls in a round that a round is much longer than a
// look at the clock and shorter than a time slice of a busy machine. Launches are
// shortest, and more: what a process finds cold when its turn comes is not what one
// after another costs. The simulator queues 1024.
var timedCalls = []timed{
	{"async", 200, map[string]rule{limited: {bounded: true, mostNs: 150}, whole: {bounded: true, mostNs: 150}}},
	{"alloc", 200, nil},
	{"meminfo", 200, noMore},
	{"meminfo-apart", 10, noMore}, // half a millisecond apart
	{"launch", 1000, map[string]rule{
		limited: {bounded: true, mostNs: 20},
		whole:   {bounded: true, mostNs: 20},
		capped:  {bounded: true, mostNs: 100},
	}},
}

// inTurns measures all sides in each round, one after the other. Rounds begin
// with different sides, so that none has the better place.
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

// calls times the calls of processes that run.
func (b *bench) calls(ctx context.Context, rounds int) (results []Result, err error) {
	servers := map[string]*server{}
	defer func() {
		for _, s := range servers {
			err = errors.Join(err, s.end())
		}
	}()
	for _, side := range callSides {
		s, err := b.serve(ctx, side)
		if err != nil {
			return nil, err
		}
		servers[side] = s
	}
	for _, call := range timedCalls {
		measure := func(side string) (float64, error) { return servers[side].time(call.name, call.count) }
		if _, err := inTurns(callSides, rounds/10+1, measure); err != nil { // to warm up
			return nil, err
		}
		samples, err := inTurns(callSides, rounds, measure)
		if err != nil {
			return nil, err
		}
		results = append(results, compare(call.name, call.count, callSides, samples, call.rules)...)
	}
	return results, nil
}

const millisecond = 1e6 // ns

// starts times processes that start one by one.
func (b *bench) starts(ctx context.Context, rounds int) ([]Result, error) {
	opened := map[string][]float64{}
	inits, err := inTurns(startSides, rounds, func(side string) (float64, error) {
		said, err := b.once(ctx, side)
		opened[side] = append(opened[side], said.StartNs)
		return said.InitNs, err
	})
	if err != nil {
		return nil, err
	}
	bound := rule{bounded: true, mostNs: millisecond}
	rules := map[string]rule{limited: bound, whole: bound}
	return append(compare("init", 1, startSides, inits, rules),
		compare("open+init", 1, startSides, opened, rules)...), nil
}

// storms times processes that start at once. The simulated driver starts in no
// time, against which nothing that a process does can be small: what is promised is
// measured with one that takes as long as an H200's. The bare one shows what the interposer takes.
func (b *bench) storms(ctx context.Context, rounds, processes int) ([]Result, error) {
	bound := rule{mostRatio: 1.1}
	rules := map[string]rule{limited: bound, whole: bound}
	if b.started == "" {
		return b.stormsAs(ctx, "storm", rules, rounds, processes)
	}
	results, err := b.with(b.started).stormsAs(ctx, "storm", rules, rounds, processes)
	if err != nil {
		return nil, err
	}
	bare, err := b.stormsAs(ctx, "storm-bare", nil, rounds, processes)
	return append(results, bare...), err
}

func (b *bench) stormsAs(ctx context.Context, name string, rules map[string]rule, rounds, processes int) ([]Result, error) {
	cpu := map[string][]float64{}
	walls, err := inTurns(startSides, rounds, func(side string) (float64, error) {
		said, err := b.storm(ctx, side, processes)
		cpu[side] = append(cpu[side], said.CPUNs)
		return said.Ns, err
	})
	if err != nil {
		return nil, err
	}
	return append(compare(name, processes, startSides, walls, rules),
		compare(name+", CPU", processes, startSides, cpu, nil)...), nil
}
