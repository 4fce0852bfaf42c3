// Command overhead measures what the interposer costs, in turns with the native
// calls: calls of running processes, the start of one, and of many at once. On
// a machine without a GPU the driver is simulated; what its calls take is on
// both sides, and so not in their difference.
//
// It exits with 1 when a cost is above what is promised.
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
	"slices"
	"text/tabwriter"

	"github.com/nri-vgpu/nri-vgpu/bench/internal/report"
)

type options struct {
	build, commit, output             string
	rounds, starts, storms, processes int
	table                             bool
}

// errBroken is returned when the measurements went well, and their result
// breaks a rule.
var errBroken = errors.New("the interposer costs more than promised")

func main() {
	var o options
	flag.StringVar(&o.build, "build", "build", "directory in which the project is built")
	flag.StringVar(&o.commit, "commit", "", "what is measured, for the heading")
	flag.StringVar(&o.output, "output", "", "file for the JSON lines instead of the standard output")
	flag.IntVar(&o.rounds, "rounds", 500, "rounds in which each side makes its calls")
	flag.IntVar(&o.starts, "starts", 100, "rounds in which each side starts a process")
	flag.IntVar(&o.storms, "storms", 40, "rounds in which each side starts many at once")
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
	if o.rounds < 1 || o.starts < 1 || o.storms < 1 || o.processes < 1 {
		return errors.New("rounds, starts, storms and processes must be at least 1")
	}
	build, err := filepath.Abs(o.build)
	if err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "vgpu-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	lines, err := report.Open(o.output)
	if err != nil {
		return err
	}
	results, err := measure(ctx, o, build, temp, lines)
	if err = errors.Join(err, lines.Close()); err != nil {
		return err
	}
	if o.table {
		if err := writeTable(os.Stdout, results); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(results, func(r Result) bool { return r.Broken }) {
		return errBroken
	}
	return nil
}

// conditions is the first line of the output.
type conditions struct {
	Bench string `json:"bench"`
	report.Conditions
}

func measure(ctx context.Context, o options, build, temp string, lines *report.Lines) (all []Result, err error) {
	gpu := report.GPU()
	if err := lines.Write(conditions{"overhead", report.Now(gpu, o.commit)}); err != nil {
		return nil, err
	}
	b, err := newBench(ctx, build, temp, gpu == report.Simulated)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	for _, part := range []func() ([]Result, error){
		func() ([]Result, error) { return b.calls(ctx, o.rounds) },
		func() ([]Result, error) { return b.starts(ctx, o.starts) },
		func() ([]Result, error) { return b.storms(ctx, o.storms, o.processes) },
	} {
		results, err := part()
		if err != nil {
			return nil, err
		}
		for _, r := range results {
			if err := lines.Write(r); err != nil {
				return nil, err
			}
		}
		all = append(all, results...)
	}
	return all, nil
}

// writeTable prints the results without their samples, in ns.
func writeTable(w io.Writer, results []Result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "call\tside\tmedian ns\tmin\tmax\tdifference\t95 % from\tto\tratio\t95 % from\tto\trule\t\t")
	for _, r := range results {
		verdict := ""
		if r.Broken {
			verdict = "BROKEN"
		}
		fmt.Fprintf(t, "%s\t%s\t%.0f\t%.0f\t%.0f\t%+.0f\t%+.0f\t%+.0f\t%.2f\t%.2f\t%.2f\t%s\t%s\t\n", r.Call, r.Side,
			r.Median, r.Min, r.Max, r.Difference, r.Low, r.High, r.Ratio, r.RatioLow, r.RatioHigh, r.Rule, verdict)
	}
	return t.Flush()
}
