// Command memory measures how exact a memory limit is. For every way of taking
// device memory, alone and mixed with others, it lets programs take all they
// get under a limit, and has a judge from outside tell what they physically
// held: the simulator's oracle or, where there is a GPU, the driver.
//
// It exits with 1 when a point breaks a rule: more was held than the limit,
// something was refused that would have fit, or the answer was another than
// CUDA_ERROR_OUT_OF_MEMORY.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nri-vgpu/nri-vgpu/bench/internal/report"
)

// Sizes of contexts on simulated GPUs, in bytes: as on an H200, and small for
// mixes, so that even a small limit has room for several processes.
const (
	simulatedContext = 512 * mib
	mixContext       = 64 * mib
)

type options struct {
	build, commit, library, variables, output, ways string
	mixes                                           int
	seed                                            uint64
	table                                           bool
}

// errBroken is returned when the measurements went well, and their result
// breaks a rule.
var errBroken = errors.New("the memory limit does not hold as it should")

func main() {
	var o options
	flag.StringVar(&o.build, "build", "build", "directory in which the project is built")
	flag.StringVar(&o.commit, "commit", "", "what is measured, for the heading")
	flag.StringVar(&o.library, "library", "", "another library to preload instead of ours, for comparison")
	flag.StringVar(&o.variables, "env", "", "variables for it, as \"A=b C={limit_mib}\"; also {limit_bytes}, and {run_dir}, an empty directory")
	flag.StringVar(&o.output, "output", "", "file for the JSON lines instead of the standard output")
	flag.StringVar(&o.ways, "ways", "", "ways to try, separated by commas; all if empty")
	flag.IntVar(&o.mixes, "mixes", 5, "random mixes of ways at each limit")
	flag.Uint64Var(&o.seed, "seed", 1, "of the mixes: the same seed makes the same mixes")
	flag.BoolVar(&o.table, "table", false, "print a table at the end")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "memory:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	temp, err := os.MkdirTemp("", "vgpu-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeAll(temp)) }()
	build, err := filepath.Abs(o.build)
	if err != nil {
		return err
	}
	l, err := newLauncher(build, temp, o.library, o.variables)
	if err != nil {
		return err
	}
	lines, err := report.Open(o.output)
	if err != nil {
		return err
	}
	points, err := measure(ctx, o, suite{build, temp, l}, lines)
	if err = errors.Join(err, lines.Close()); err != nil {
		return err
	}
	if o.table {
		if err := writeTable(os.Stdout, points, summarize(points)); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(points, func(p Point) bool { return p.Broken != "" }) {
		return errBroken
	}
	return nil
}

// suite is what runners of one run have in common.
type suite struct {
	build, temp string
	launcher    launcher
}

func (s suite) fill() string { return filepath.Join(s.build, "workload", "fill") }

// runner measures on machines with contexts of this size, in bytes, if they are
// simulated.
func (s suite) runner(name string, context uint64) (*runner, error) {
	temp := filepath.Join(s.temp, name)
	return &runner{
		launcher: s.launcher,
		fill:     s.fill(),
		newMachine: func(dir string) (machine, error) {
			if report.GPU() == report.Real {
				return newReal(s.build)
			}
			return newSimulated(s.build, dir, context)
		},
		temp: temp,
	}, os.Mkdir(temp, 0o700)
}

func (s suite) ways(ctx context.Context, wanted string) ([]string, error) {
	list, err := exec.CommandContext(ctx, s.fill(), "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("list the ways: %w", err)
	}
	ways := parseWays(string(list))
	if wanted == "" {
		return ways, nil
	}
	return chosen(ways, strings.Split(wanted, ","))
}

// conditions is the first line of the output.
type conditions struct {
	Bench string `json:"bench"`
	report.Conditions
	Library string `json:"library"`
	Seed    uint64 `json:"seed"`
}

func measure(ctx context.Context, o options, s suite, lines *report.Lines) ([]Point, error) {
	if err := lines.Write(conditions{"memory", report.Now(report.GPU(), o.commit), s.launcher.name(), o.seed}); err != nil {
		return nil, err
	}
	ways, err := s.ways(ctx, o.ways)
	if err != nil {
		return nil, err
	}
	singles, err := s.measureSteps(ctx, "alone", simulatedContext, ways, lines, func(sizes) []step {
		return aloneSteps(ways, limits)
	})
	if err != nil {
		return nil, err
	}
	mixed, err := s.measureSteps(ctx, mixName, mixContext, ways, lines, func(native sizes) []step {
		return mixSteps(ways, limits, o.mixes, o.seed, native.context)
	})
	if err != nil {
		return nil, err
	}
	points := slices.Concat(singles, mixed)
	for _, summary := range summarize(points) {
		if err := lines.Write(summary); err != nil {
			return nil, err
		}
	}
	return points, nil
}

// measureSteps finds what there is without a limit, plans, and measures.
func (s suite) measureSteps(ctx context.Context, name string, context uint64, ways []string,
	lines *report.Lines, plan func(sizes) []step) ([]Point, error) {
	r, err := s.runner(name, context)
	if err != nil {
		return nil, err
	}
	if err := r.measureNative(ctx, union(ways, exactWay)); err != nil {
		return nil, err
	}
	var points []Point
	for _, step := range plan(r.native) {
		p, err := r.run(ctx, step)
		if err != nil {
			return nil, err
		}
		points = append(points, p)
		if err := lines.Write(p); err != nil {
			return nil, err
		}
	}
	return points, nil
}

func union(ways []string, way string) []string {
	if slices.Contains(ways, way) {
		return ways
	}
	return append(slices.Clone(ways), way)
}

// removeAll removes a directory in which processes may be tidying up still.
func removeAll(dir string) error {
	err := os.RemoveAll(dir)
	for tries := 0; err != nil && tries < 50; tries++ {
		time.Sleep(20 * time.Millisecond)
		err = os.RemoveAll(dir)
	}
	return err
}
