// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

// parse returns the selection of a command line.
func parse(t *testing.T, args ...string) (selection, error) {
	t.Helper()
	var o options
	flags := flag.NewFlagSet("compute", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	o.register(flags)
	if err := flags.Parse(args); err != nil {
		return selection{}, err
	}
	if err := o.settle(flags); err != nil {
		return selection{}, err
	}
	return o.selection()
}

func TestPlan(t *testing.T) {
	tests := []struct {
		args string
		want map[string]int // points by workload
		has  string
	}{
		{"", map[string]int{single: 24, pair: 8, triple: 2, latency: 1, share: 4, quotas: 4}, "single/graph-20/20000us/70"},
		{"--limits 10,30,50,70,90 --kernels 20,200,2000,20000,200000", map[string]int{single: 150, pair: 8, triple: 2, latency: 1, share: 4, quotas: 4},
			"single/graph-20/200000us/10"},
		{"--quick", map[string]int{single: 6, pair: 1, triple: 1, quotas: 2}, "pair/async/200+20000us/30+50"},
		{"--quick --limits 90 --workloads single", map[string]int{single: 6}, "single/varying/20000us/90"},
		{"--workloads triple,pair", map[string]int{pair: 8, triple: 2}, "triple/async/200+2000+20000us/15+25+40"},
		{"--workloads quota", map[string]int{quotas: 4}, "quota/async/20000+200us/30+50/0.5cores"},
		{"--workloads latency", map[string]int{latency: 1}, "latency/periodic/1000+20000us/50+50"},
		{"--workloads share", map[string]int{share: 4}, "share/async/20000us/30"},
	}
	for _, test := range tests {
		selected, err := parse(t, strings.Fields(test.args)...)
		if err != nil {
			t.Errorf("%q: %v", test.args, err)
			continue
		}
		steps := plan(selected)
		got, ids := map[string]int{}, map[string]bool{}
		for _, s := range steps {
			got[s.workload]++
			ids[s.id] = true
		}
		for _, workload := range allWorkloads {
			if got[workload] != test.want[workload] {
				t.Errorf("%q: %d of %s, want %d", test.args, got[workload], workload, test.want[workload])
			}
		}
		if len(ids) != len(steps) {
			t.Errorf("%q: %d ids for %d points", test.args, len(ids), len(steps))
		}
		if !ids[test.has] {
			t.Errorf("%q: no %q", test.args, test.has)
		}
	}
}

func TestOptionsRefused(t *testing.T) {
	for args, want := range map[string]string{
		"--kernels x":       "--kernels",
		"--kernels 0":       "1 to 1e+07",
		"--limits 30,101":   `--limits has "101"`,
		"--patterns graph":  "async,launch-and-wait,graph-20,streams-8,processes-4,varying",
		"--workloads alone": `--workloads has "alone"`,
		"--duration 10ms":   "--duration",
		"--warmup -1s":      "--warmup",
	} {
		if _, err := parse(t, strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", args, err, want)
		}
	}
}

func TestSpan(t *testing.T) {
	ten := span{2 * time.Second, 10 * time.Second}
	graph := allPatterns[slices.IndexFunc(allPatterns, func(p pattern) bool { return p.name == "graph-20" })]
	processes := allPatterns[slices.IndexFunc(allPatterns, func(p pattern) bool { return p.name == "processes-4" })]
	tests := []struct {
		name  string
		loads []load
		want  time.Duration
		begin time.Duration // 0: the requested warm-up
	}{
		{"short kernels", []load{{kernelUS: 200, pattern: allPatterns[0], limit: 10}}, 10 * time.Second, 0},
		{"five cycles", []load{{kernelUS: 200000, pattern: allPatterns[0], limit: 10}}, 10 * time.Second, 6 * time.Second},
		{"cycles of 300 ms", []load{{kernelUS: 90000, pattern: allPatterns[0], limit: 30}}, 10200 * time.Millisecond, 0},
		{"one graph in 40 s", []load{{kernelUS: 200000, pattern: graph, limit: 10}}, 40 * time.Second, 120 * time.Second},
		{"four processes", []load{{kernelUS: 200000, pattern: processes, limit: 10}}, 16 * time.Second, 24 * time.Second},
		{"the longer of two launches", []load{
			{kernelUS: 200, pattern: allPatterns[0], limit: 10},
			{kernelUS: 200000, pattern: graph, limit: 50}}, 16 * time.Second, 24 * time.Second},
		{"no limit", []load{{kernelUS: 200000, pattern: graph}}, 12 * time.Second, 12 * time.Second},
	}
	two := span{time.Second, 2 * time.Second}
	pair := []load{{kernelUS: 200, pattern: allPatterns[0], limit: 30}, {kernelUS: 20000, pattern: allPatterns[0], limit: 50}}
	if got, want := two.of(pair).measure, leastTogether; got != want {
		t.Errorf("side by side: %v, want %v", got, want)
	}
	for _, test := range tests {
		want := span{max(ten.warmup, test.begin), test.want}
		if got := ten.of(test.loads); got != want {
			t.Errorf("%s: %v, want %v", test.name, got, want)
		}
	}
}

func TestMissing(t *testing.T) {
	steps := []step{{id: "a"}, {id: "b"}, {id: "c"}}
	got := missing(steps, "h200", []Record{{ID: "a"}, {ID: "b", Profile: "h200"}, {ID: "z", Profile: "h200"}})
	if len(got) != 2 || got[0].id != "a" || got[1].id != "c" || len(steps) != 3 || steps[1].id != "b" {
		t.Errorf("missing %v of %v", got, steps)
	}
}

func TestProfiles(t *testing.T) {
	all, err := profilesIn("../../gpusim/profiles", "r580-h200")
	if err != nil || len(all) < 10 || all[0] != kind {
		t.Fatalf("%v, error %v", all, err)
	}
	some, err := chosenProfiles(all, "one-queue,kind")
	if err != nil || len(some) != 2 || some[0].name != "r580-h200+one-queue" || some[1] != kind {
		t.Errorf("%+v, error %v", some, err)
	}
	for card := range short {
		if _, err := chosenProfiles(all, card); err != nil {
			t.Errorf("an exception exists for an unknown card: %v", err)
		}
	}
	if _, err := chosenProfiles(all, "h100"); err == nil || !strings.Contains(err.Error(), "kind,") {
		t.Errorf("error %v", err)
	}
	if _, err := profilesIn(t.TempDir(), "r580-h200"); err == nil || !strings.Contains(err.Error(), "--profile-dir") {
		t.Errorf("error %v", err)
	}
}
