// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/bench/internal/report"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
)

// These constants are the test cases of scheduler/perf/testdata/workloads.yaml.
const (
	basic = "SchedulingBasic"
	vgpu  = "SchedulingVGPU"
)

// round is a line of the output: one run of a test case.
type round struct {
	Case          string  `json:"case"`
	Workload      string  `json:"workload"`
	PodsPerSecond float64 `json:"pods_per_s"`
	// PluginP99 is the 99th percentile of the plugin's time in milliseconds, by extension point.
	PluginP99 map[string]float64 `json:"plugin_p99_ms,omitempty"`
	// AttemptP99 is the 99th percentile of scheduling attempts, in milliseconds. An attempt includes
	// the binding.
	AttemptP99 float64 `json:"attempt_p99_ms"`
}

// throughput measures both test cases one after the other.
func (r *result) throughput(ctx context.Context, o options, temp string, lines *report.Lines) error {
	etcd, err := build(ctx, moduleNamed("etcd"))
	if err != nil {
		return err
	}
	rates := map[string][]float64{}
	for range o.rounds {
		for _, name := range []string{basic, vgpu} {
			one, err := perf(ctx, o, name, etcd, temp)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			rates[name] = append(rates[name], one.PodsPerSecond)
			for point, p99 := range one.PluginP99 {
				if point != "Bind" {
					r.PluginP99 = max(r.PluginP99, p99)
				}
			}
			if err := lines.Write(one); err != nil {
				return err
			}
		}
	}
	r.Baseline, r.PodsPerSecond = median(rates[basic]), median(rates[vgpu])
	return nil
}

func median(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}

// build returns the path of a module's only program.
func build(ctx context.Context, module components.Module) (string, error) {
	root, err := os.Getwd()
	if err != nil {
		return "", err
	}
	builder := components.Builder{Root: root, Out: os.Stderr}
	built, err := builder.Build(ctx, []components.Module{module})
	if err != nil {
		return "", fmt.Errorf("build %s: %w", module.Name, err)
	}
	return built[module.Programs[0].Name], nil
}

// moduleNamed returns a component of a node.
func moduleNamed(name string) components.Module {
	all := components.Modules()
	return all[slices.IndexFunc(all, func(m components.Module) bool { return m.Name == name })]
}

// perf runs one test case.
func perf(ctx context.Context, o options, name, etcd, temp string) (round, error) {
	fmt.Fprintf(os.Stderr, "%s/%s ...\n", name, o.workload)
	dir, err := os.MkdirTemp(temp, "perf-")
	if err != nil {
		return round{}, err
	}
	modules, err := exec.CommandContext(ctx, "go", "env", "GOMODCACHE").Output()
	if err != nil {
		return round{}, fmt.Errorf("find the module cache: %w", err)
	}
	program := exec.CommandContext(ctx, o.perf, "-test.run=^$", "-test.benchtime=1x", "-test.timeout=1h",
		"-test.bench=^BenchmarkPerfScheduling$/^"+name+"$/^"+o.workload+"$", "-perf-scheduling-label-filter=", "-data-items-dir="+dir)
	program.Dir = filepath.Join("scheduler", "perf")
	// scheduler_perf reads files of its module. -trimpath has removed the module's path from the
	// program.
	program.Env = append(os.Environ(), "PATH="+filepath.Dir(etcd)+":"+os.Getenv("PATH"),
		"TEST_SRCDIR="+strings.TrimSpace(string(modules)), "TEST_WORKSPACE=.", "TMPDIR="+dir)
	out, err := program.CombinedOutput()
	if err != nil {
		return round{}, fmt.Errorf("%w: %s", err, lastLines(string(out), 20))
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) != 1 {
		return round{}, errors.Join(err, fmt.Errorf("read the results of scheduler_perf: %d results, want 1; the output ends with: %s", len(files), lastLines(string(out), 20)))
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		return round{}, err
	}
	return parse(name, o.workload, text)
}

func lastLines(text string, count int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-count):], "\n")
}

// parse reads the results of one run of scheduler_perf.
func parse(name, workload string, text []byte) (round, error) {
	var data struct {
		Items []struct {
			Data   map[string]float64 `json:"data"`
			Labels map[string]string  `json:"labels"`
		} `json:"dataItems"`
	}
	if err := json.Unmarshal(text, &data); err != nil {
		return round{}, fmt.Errorf("read the results: %w", err)
	}
	one := round{Case: name, Workload: workload}
	for _, item := range data.Items {
		switch l := item.Labels; {
		case l["Metric"] == "SchedulingThroughput":
			one.PodsPerSecond = item.Data["Average"]
		case l["Metric"] == "scheduler_scheduling_attempt_duration_seconds" && l["result"] == "scheduled":
			one.AttemptP99 = item.Data["Perc99"]
		case l["Metric"] == "scheduler_plugin_execution_duration_seconds" && l["plugin"] == "VGPU":
			if one.PluginP99 == nil {
				one.PluginP99 = map[string]float64{}
			}
			one.PluginP99[l["extension_point"]] = item.Data["Perc99"]
		}
	}
	if one.PodsPerSecond == 0 || name == vgpu && len(one.PluginP99) == 0 {
		return one, errors.New("the results lack the throughput or the plugin's times")
	}
	return one, nil
}
