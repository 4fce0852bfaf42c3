// SPDX-License-Identifier: Apache-2.0

// Command scheduler measures nri-vgpu-scheduler. Kubernetes' scheduler_perf measures the throughput
// relative to kube-scheduler. The command also measures the memory and the start of the scheduler
// in a cluster full of pods. The API server and etcd are real. The Nodes have no kubelets.
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
	"time"

	"github.com/nri-vgpu/nri-vgpu/bench/internal/report"
	"github.com/nri-vgpu/nri-vgpu/bench/internal/tempdir"
	"github.com/nri-vgpu/nri-vgpu/test/cluster"
)

type options struct {
	build, commit, output string
	perf, workload        string
	rounds, nodes, pods   int
	churn                 time.Duration
	rate                  float64
}

// These constants are the promises of nri-vgpu-scheduler.
const (
	leastRatio  = 0.8 // of kube-scheduler's throughput
	mostP99     = 1   // milliseconds in the plugin
	mostMiB     = 500
	mostSeconds = 10 // until a new leader schedules
)

// errBroken reports that the measurements succeeded and break a promise.
var errBroken = errors.New("a cost of the scheduler exceeds the promise")

func main() {
	cluster.Supervise()
	var o options
	flag.StringVar(&o.build, "build", "build", "directory of the built project")
	flag.StringVar(&o.perf, "perf", "", "the benchmark of scheduler/perf, compiled; empty: measure no throughput")
	report.Flags(flag.CommandLine, &o.commit, &o.output)
	flag.StringVar(&o.workload, "workload", "5000Nodes_10000Pods", "workload of scheduler/perf/testdata/workloads.yaml; 500Nodes_1000Pods is short")
	flag.IntVar(&o.rounds, "rounds", 3, "measurements of the throughput of each scheduler, alternating")
	flag.IntVar(&o.nodes, "nodes", 5000, "nodes of the full cluster, each with eight GPUs")
	flag.IntVar(&o.pods, "pods", 40000, "pods of the full cluster, each with a part of a GPU; 0: measure neither memory nor start")
	flag.DurationVar(&o.churn, "churn", 0, "measure only the churn of pods on kwok's nodes, with kills of leaders, for this time")
	flag.Float64Var(&o.rate, "rate", 40, "pods that arrive in a second with --churn")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "scheduler:", err)
		os.Exit(1)
	}
}

// result is the last line of the output.
type result struct {
	Workload string `json:"workload"`
	// PodsPerSecond and Baseline are medians of the rounds. The baseline is the throughput of
	// kube-scheduler with the same pods without GPUs, in the same run.
	PodsPerSecond float64 `json:"pods_per_s"`
	Baseline      float64 `json:"baseline_pods_per_s"`
	// PluginP99 is the largest 99th percentile of the plugin's extension points, except Bind, which
	// waits for the API server.
	PluginP99 float64 `json:"plugin_p99_ms"`
	// RSS is the peak resident memory in the full cluster. Rebuild is the time from the start of
	// the program to the first binding in the full cluster. The baseline is the same program
	// without the plugin.
	RSS             float64 `json:"rss_mib"`
	Rebuild         float64 `json:"rebuild_s"`
	BaselineRSS     float64 `json:"baseline_rss_mib"`
	BaselineRebuild float64 `json:"baseline_rebuild_s"`
	Nodes           int     `json:"nodes"`
	Pods            int     `json:"pods"`
}

func (r result) holds(o options) bool {
	return (o.perf == "" || r.PodsPerSecond >= leastRatio*r.Baseline && r.PluginP99 <= mostP99) &&
		r.RSS <= mostMiB && r.Rebuild <= mostSeconds
}

func run(ctx context.Context, o options) (err error) {
	if flag.NArg() > 0 || o.rounds < 1 || o.nodes < 1 || o.pods < 0 || o.churn < 0 || o.rate <= 0 {
		return errors.New("every number must be positive, without other arguments: see --help")
	}
	if o.build, err = filepath.Abs(o.build); err != nil {
		return err
	}
	if o.perf != "" {
		// scheduler_perf runs in its own directory.
		if o.perf, err = filepath.Abs(o.perf); err != nil {
			return err
		}
	}
	temp, remove, err := tempdir.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	lines, err := report.Open(o.output)
	if err != nil {
		return err
	}
	holds, err := measure(ctx, o, temp, lines)
	if err = errors.Join(err, lines.Close()); err != nil {
		return err
	}
	if !holds {
		return errBroken
	}
	return nil
}

// measure writes the measurements, and reports whether the measurements keep the promises.
func measure(ctx context.Context, o options, temp string, lines *report.Lines) (holds bool, err error) {
	heading := struct {
		Bench string `json:"bench"`
		report.Conditions
	}{"scheduler", report.Now(report.Simulated, o.commit)}
	if err := lines.Write(heading); err != nil {
		return false, err
	}
	if o.churn > 0 {
		c, err := churn(ctx, o, temp)
		return c.holds(), errors.Join(err, lines.Write(c))
	}
	r := result{Workload: o.workload, Nodes: o.nodes, Pods: o.pods}
	if o.perf != "" {
		if err := r.throughput(ctx, o, temp, lines); err != nil {
			return false, err
		}
	}
	if o.pods > 0 {
		if err := r.fill(ctx, o, temp); err != nil {
			return false, err
		}
	}
	return r.holds(o), lines.Write(r)
}
