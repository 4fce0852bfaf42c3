// SPDX-License-Identifier: Apache-2.0

// Command overhead measures the cost of the interposer relative to native calls, which run in
// turns. The command times calls of running processes, the start of a process, and the start of
// many processes at once. On a machine without a GPU the command simulates three drivers. The
// drivers are the simulator's fastest driver, a driver with an H200's timings, and a driver
// whose NVML takes 100 ms to start.
//
// The command exits with 1 if a cost exceeds the promise.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/nri-vgpu/nri-vgpu/bench/internal/report"
	"github.com/nri-vgpu/nri-vgpu/bench/internal/tempdir"
)

type options struct {
	build, commit, output, parts, profileDir          string
	runs, rounds, startRounds, stormRounds, processes int
	table                                             bool
}

// errBroken reports that the measurements succeeded and break a rule.
var errBroken = errors.New("a cost of the interposer exceeds the promise")

func main() {
	var o options
	flag.StringVar(&o.build, "build", "build", "directory of the built project")
	report.Flags(flag.CommandLine, &o.commit, &o.output)
	flag.StringVar(&o.parts, "parts", "calls,starts,storms", "parts to measure, separated by commas")
	flag.StringVar(&o.profileDir, "profile-dir", "gpusim/profiles", "directory with the simulator's profiles")
	flag.IntVar(&o.runs, "runs", 3, "number of runs, each with new processes that make calls")
	flag.IntVar(&o.rounds, "rounds", 200, "rounds of each run, in which each side makes its calls")
	flag.IntVar(&o.startRounds, "starts", 100, "rounds in which each side starts a process")
	flag.IntVar(&o.stormRounds, "storms", 40, "rounds in which each side starts many at once")
	flag.IntVar(&o.processes, "processes", 200, "processes that start at once, each with a context")
	flag.BoolVar(&o.table, "table", false, "print a table at the end")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "overhead:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	parts, err := parseParts(o.parts)
	if err != nil {
		return err
	}
	if o.runs < 1 || o.rounds < 1 || o.startRounds < 1 || o.stormRounds < 1 || o.processes < 1 {
		return errors.New("runs, rounds, starts, storms and processes must be at least 1")
	}
	build, err := filepath.Abs(o.build)
	if err != nil {
		return err
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
	p, err := newPrograms(build, o.profileDir, temp)
	if err != nil {
		return errors.Join(err, lines.Close())
	}
	m := &measurement{options: o, programs: p, parts: parts, temp: temp, lines: lines}
	if err = errors.Join(m.run(ctx), lines.Close()); err != nil {
		return err
	}
	if o.table {
		if err := writeTable(os.Stdout, m.results, m.uses); err != nil {
			return err
		}
	}
	if m.broken() {
		return errBroken
	}
	return nil
}

// parseParts parses the list of parts to measure.
func parseParts(list string) (map[string]bool, error) {
	wanted := map[string]bool{}
	for part := range strings.SplitSeq(list, ",") {
		if part != partCalls && part != partStarts && part != partStorms {
			return nil, fmt.Errorf("part %q; allowed: %s, %s, %s", part, partCalls, partStarts, partStorms)
		}
		wanted[part] = true
	}
	return wanted, nil
}

// conditions is the first line of the output.
type conditions struct {
	Bench string `json:"bench"`
	report.Conditions
}

// writeTable prints the results without their samples, in ns.
func writeTable(w io.Writer, results []Result, uses []NVMLUse) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "driver\tcall\tside\tmedian ns\tmin\tmax\tdifference\t95 % from\tto\tof native, %\tratio\t95 % from\tto\trule\t\t")
	for _, r := range results {
		verdict := ""
		if r.Broken {
			verdict = "BROKEN"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%.0f\t%.0f\t%.0f\t%+.0f\t%+.0f\t%+.0f\t%+.1f\t%.2f\t%.2f\t%.2f\t%s\t%s\t\n", r.Driver, r.Call, r.Side,
			r.Median, r.Min, r.Max, r.Difference, r.Low, r.High, r.Share, r.Ratio, r.RatioLow, r.RatioHigh, r.Rule, verdict)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, use := range uses {
		if _, err := fmt.Fprintf(w, "%s: %d calls of NVML by tenants %v\n", use.Driver, use.Calls, use.Processes); err != nil {
			return err
		}
	}
	return nil
}
