// SPDX-License-Identifier: Apache-2.0

// Command agent measures the costs of the agent and the patcher on a node. The
// costs are the wait of a container's creation, memory, processor time, and
// writes to the API server. The agent and the patcher are the released
// programs. The API server and the NRI connection are real. The GPUs are
// simulated, and no container is started.
//
// The command exits with 1 if a promise is broken.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"time"

	"github.com/nri-vgpu/nri-vgpu/bench/internal/report"
	"github.com/nri-vgpu/nri-vgpu/bench/internal/tempdir"
	"github.com/nri-vgpu/nri-vgpu/test/cluster"
)

type options struct {
	build, commit, output string
	pods, asking, rounds  int
	flood, atOnce         int
	idle                  time.Duration
}

// errBroken reports that the measurements succeeded and break a promise.
var errBroken = errors.New("a cost of the agent exceeds the promise")

func main() {
	cluster.Supervise()
	var o options
	flag.StringVar(&o.build, "build", "build", "directory of the built project")
	report.Flags(flag.CommandLine, &o.commit, &o.output)
	flag.IntVar(&o.pods, "pods", 500, "pods on the node")
	flag.IntVar(&o.asking, "asking", 50, "pods whose container has a part of a GPU")
	flag.IntVar(&o.rounds, "rounds", 10, "number of creations of each container")
	flag.DurationVar(&o.idle, "idle", time.Minute, "duration of the idle period")
	flag.IntVar(&o.flood, "flood", 0, "measure only the waits of a few pods beside this many pods of 64 requesting containers")
	flag.IntVar(&o.atOnce, "at-once", 110, "number of concurrent pods of the flood; a kubelet admits 110 pods")
	flag.Parse()
	if o.flood > 0 {
		o.pods, o.asking = neighbours, neighbours/2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	temp, remove, err := tempdir.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if o.build, err = filepath.Abs(o.build); err != nil {
		return err
	}
	lines, err := report.Open(o.output)
	if err != nil {
		return err
	}
	verdicts, err := measure(ctx, o, temp, lines)
	if err = errors.Join(err, lines.Close()); err != nil {
		return err
	}
	if slices.ContainsFunc(verdicts, func(v verdict) bool { return !v.Holds }) {
		return errBroken
	}
	return nil
}

// conditions is the first line of the output.
type conditions struct {
	Bench string `json:"bench"`
	report.Conditions
	Pods   int `json:"pods"`
	Asking int `json:"containers_with_gpu"`
	Flood  int `json:"flood_pods,omitempty"`
	AtOnce int `json:"flood_pods_at_once,omitempty"`
}

func measure(ctx context.Context, o options, temp string, lines *report.Lines) (verdicts []verdict, err error) {
	what := conditions{Bench: "agent", Conditions: report.Now(report.Simulated, o.commit), Pods: o.pods, Asking: o.asking}
	if o.flood > 0 {
		what.Flood, what.AtOnce = o.flood, o.atOnce
	}
	if err := lines.Write(what); err != nil {
		return nil, err
	}
	n, err := newNode(ctx, o, temp)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	if o.flood > 0 {
		return n.flood(ctx, lines)
	}
	created, err := n.createAll(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range created {
		if err := lines.Write(c); err != nil {
			return nil, err
		}
	}
	handled, err := handlers(ctx, agentAddress)
	if err != nil {
		return nil, err
	}
	for _, h := range handled {
		if err := lines.Write(h); err != nil {
			return nil, err
		}
	}
	idle, err := n.rest(ctx, o.idle)
	if err != nil {
		return nil, err
	}
	for _, i := range idle {
		if err := lines.Write(i); err != nil {
			return nil, err
		}
	}
	verdicts = judge(handled, idle)
	for _, v := range verdicts {
		if err := lines.Write(v); err != nil {
			return nil, err
		}
		fmt.Fprintln(os.Stderr, v)
	}
	return verdicts, nil
}
