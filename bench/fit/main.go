// SPDX-License-Identifier: Apache-2.0

// Command fit measures how long the Nodes of the mode fit lag behind the bindings and ends of their
// pods. The command starts a cluster of two real nodes with simulated GPUs, where kube-scheduler binds
// the pods.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/nri-vgpu/nri-vgpu/bench/internal/report"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
	"github.com/nri-vgpu/nri-vgpu/test/cluster"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
	"github.com/nri-vgpu/nri-vgpu/test/turns"
)

// patience bounds the wait for a pod or a Node.
const patience = 2 * time.Minute

type options struct {
	commit, output string
	pods           int
}

func main() {
	cluster.Supervise()
	var o options
	report.Flags(flag.CommandLine, &o.commit, &o.output)
	flag.IntVar(&o.pods, "pods", 200, "number of pods that start and end, on both nodes together")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fit:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	if flag.NArg() > 0 || o.pods < 2 {
		return errors.New("--pods must be at least 2, without other arguments: see --help")
	}
	lines, err := report.Open(o.output)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lines.Close()) }()
	heading := struct {
		Bench string `json:"bench"`
		report.Conditions
		Nodes int `json:"nodes"`
		Pods  int `json:"pods"`
	}{"fit", report.Now(report.Simulated, o.commit), 2, o.pods}
	if err := lines.Write(heading); err != nil {
		return err
	}
	beds, err := up(ctx)
	defer func() { err = errors.Join(err, testbed.DownNodes(beds, false)) }()
	if err != nil {
		return err
	}
	recorder, err := turns.Record(ctx, beds[0].Client)
	if err != nil {
		return err
	}
	if err := churn(ctx, beds, recorder, o.pods); err != nil {
		return err
	}
	return write(lines, recorder)
}

// up starts the nodes, and waits until the mode is in force on both nodes and in the API server.
func up(ctx context.Context) ([]*testbed.Bed, error) {
	source, err := testbed.SourceRoot()
	if err != nil {
		return nil, err
	}
	helm, err := components.HelmProgram(ctx, source, os.Stderr)
	if err != nil {
		return nil, err
	}
	beds, err := testbed.UpNodes(ctx, testbed.Options{
		Name: "bench-fit", Source: source, GPUs: 2, GPUMemory: 16 << 30,
		Log: func(format string, args ...any) { fmt.Fprintf(os.Stderr, "fit: "+format+"\n", args...) },
		Install: func(ctx context.Context, bed *testbed.Bed) error {
			return bed.HelmInstall(ctx, helm, "--set", "config.scheduling.mode=fit")
		},
	})
	if err != nil {
		return beds, err
	}
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		nodes, err := beds[0].Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: request.FitLabel})
		if err != nil || len(nodes.Items) < len(beds) {
			return false, nil //nolint:nilerr // the API server may be busy
		}
		pod, err := beds[0].Client.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, podOn(beds[0], "try"),
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && request.ShapeOf(pod) != "", nil
	})
	if err != nil {
		return beds, fmt.Errorf("wait until the mode fit is in force: %w", err)
	}
	return beds, nil
}

// podOn returns a pod with a part of a GPU of a node. kube-scheduler binds the pod.
func podOn(bed *testbed.Bed, name string) *corev1.Pod {
	pod := testbed.Pod(name, testbed.Container("main", testbed.Limits{testbed.Memory: 1 << 10}, "sleep", "3600"))
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: bed.Cluster.NodeName}
	return pod
}

// churn starts and ends pods, on each node one pod after the other.
func churn(ctx context.Context, beds []*testbed.Bed, recorder *turns.Recorder, pods int) error {
	results := make(chan error)
	for i, bed := range beds {
		go func() {
			for n := i; n < pods; n += len(beds) {
				if err := startAndEnd(ctx, bed, recorder, fmt.Sprint("sample-", n)); err != nil {
					results <- err
					return
				}
			}
			results <- nil
		}()
	}
	var errs []error
	for range beds {
		errs = append(errs, <-results)
	}
	return errors.Join(errs...)
}

func startAndEnd(ctx context.Context, bed *testbed.Bed, recorder *turns.Recorder, name string) error {
	if _, err := bed.Create(ctx, podOn(bed, name)); err != nil {
		return err
	}
	if err := recorder.Await(ctx, name, turns.Binding, patience); err != nil {
		return err
	}
	if _, err := bed.WaitRunning(ctx, name, patience); err != nil {
		return err
	}
	if err := bed.Client.CoreV1().Pods(metav1.NamespaceDefault).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return recorder.Await(ctx, name, turns.End, patience)
}

// delay is a line of the output, and summary is the line about all delays after a change.
type delay struct {
	Change       turns.Change `json:"change"`
	Node         string       `json:"node"`
	Milliseconds float64      `json:"delay_ms"`
}

type summary struct {
	Change  turns.Change `json:"change"`
	Samples int          `json:"samples"`
	Median  float64      `json:"median_ms"`
	P99     float64      `json:"p99_ms"`
	Most    float64      `json:"most_ms"`
}

// write writes all delays, and a summary for each change.
func write(lines *report.Lines, recorder *turns.Recorder) error {
	var summaries []summary
	for _, change := range []turns.Change{turns.Binding, turns.End} {
		all := recorder.Delays(change)
		at := func(part float64) float64 { return milliseconds(all[int(part*float64(len(all)-1))].Took) }
		summaries = append(summaries, summary{change, len(all), at(0.5), at(0.99), at(1)})
		for _, d := range all {
			if err := lines.Write(delay{d.Change, d.Node, milliseconds(d.Took)}); err != nil {
				return err
			}
		}
	}
	for _, s := range summaries {
		if err := lines.Write(s); err != nil {
			return err
		}
	}
	return nil
}

// milliseconds returns a duration in milliseconds, with one decimal.
func milliseconds(d time.Duration) float64 {
	return float64(d.Round(100*time.Microsecond)) / float64(time.Millisecond)
}
