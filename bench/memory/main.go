// SPDX-License-Identifier: Apache-2.0

// Command memory measures the accuracy of memory limits. Under a limit, programs allocate device
// memory until an allocation fails, with every way of allocating, alone and mixed. An independent
// judge, the simulator's oracle or a real GPU's driver, reports the memory that the programs
// physically held.
//
// The command exits with 1 if a point breaks a rule. The rules forbid holding more
// than the limit, refusing a request that would have fit, and errors other than
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

	"github.com/nri-vgpu/nri-vgpu/bench/internal/report"
	"github.com/nri-vgpu/nri-vgpu/bench/internal/tempdir"
)

type options struct {
	build, commit, library, variables, output, ways string
	profiles, profileDir                            string
	mixes                                           int
	seed                                            uint64
	table                                           bool
}

// errBroken reports that the measurements succeeded and break a rule.
var errBroken = errors.New("a rule for the memory limit is broken")

func main() {
	var o options
	flag.StringVar(&o.build, "build", "build", "directory of the built project")
	report.Flags(flag.CommandLine, &o.commit, &o.output)
	flag.StringVar(&o.library, "library", "", "another library to preload instead of nri-vgpu's library, for comparison")
	flag.StringVar(&o.variables, "env", "", "variables for that library, as \"A=b C={limit_mib}\"; also {limit_bytes}, and {run_dir}, an empty directory")
	flag.StringVar(&o.ways, "ways", "", "ways to measure, separated by commas; empty: all")
	flag.StringVar(&o.profiles, "profiles", "", "drivers to simulate, separated by commas: kind, or a profile's name; empty: all")
	flag.StringVar(&o.profileDir, "profile-dir", "gpusim/profiles", "directory with the profiles")
	flag.IntVar(&o.mixes, "mixes", 1, "random mixes of ways at each limit")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the mixes: the same seed makes the same mixes")
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
	temp, remove, err := tempdir.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
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
	found, err := measure(ctx, o, suite{build, temp, l}, lines)
	if err = errors.Join(err, lines.Close()); err != nil {
		return err
	}
	if o.table {
		if err := writeTable(os.Stdout, found, summarize(found.points)); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(found.points, func(p Point) bool { return p.Broken != "" }) {
		return errBroken
	}
	return nil
}

// suite is the common part of the runners of one run.
type suite struct {
	build, temp string
	launcher    launcher
}

func (s suite) fill() string { return filepath.Join(s.build, "workload", "fill") }

// runner returns a runner for machines with the driver of a profile. context is the size of
// contexts on simulated machines in bytes, or 0 for the driver's own size.
func (s suite) runner(name string, p profile, context uint64) (*runner, error) {
	temp := filepath.Join(s.temp, p.name+"-"+name)
	return &runner{
		launcher: s.launcher,
		profile:  p,
		fill:     s.fill(),
		newMachine: func(dir string) (machine, error) {
			if report.GPU() == report.Real {
				return newReal(s.build)
			}
			return newSimulated(s.build, dir, p.file, context)
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

// conditions is the first line of a profile's output.
type conditions struct {
	Bench string `json:"bench"`
	report.Conditions
	Library string `json:"library"`
	Profile string `json:"profile"`
	Seed    uint64 `json:"seed"`
}

// findings are the results of the measured profiles.
type findings struct {
	points []Point
	absent []Absent
}

func measure(ctx context.Context, o options, s suite, lines *report.Lines) (findings, error) {
	ways, err := s.ways(ctx, o.ways)
	if err != nil {
		return findings{}, err
	}
	all, err := profilesIn(o.profileDir)
	if err != nil {
		return findings{}, err
	}
	profiles, err := chosenProfiles(all, o.profiles)
	if err != nil {
		return findings{}, err
	}
	var found findings
	for _, p := range profiles {
		measured, err := s.measureProfile(ctx, o, p, ways, lines)
		if err != nil {
			return findings{}, fmt.Errorf("measure profile %s: %w", p.name, err)
		}
		found.points = append(found.points, measured.points...)
		found.absent = append(found.absent, measured.absent...)
	}
	return found, nil
}

// measureProfile measures all points of one profile, and summarizes the points.
func (s suite) measureProfile(ctx context.Context, o options, p profile, ways []string, lines *report.Lines) (findings, error) {
	heading := conditions{"memory", report.Now(report.GPU(), o.commit), s.launcher.name(), p.name, o.seed}
	if err := lines.Write(heading); err != nil {
		return findings{}, err
	}
	alone, err := s.runner("alone", p, 0)
	if err != nil {
		return findings{}, err
	}
	singles, err := alone.measureSteps(ctx, ways, lines, func(there []string, _ sizes) []step { return aloneSteps(there, limits) })
	if err != nil {
		return findings{}, err
	}
	for _, absent := range alone.absent {
		if err := lines.Write(absent); err != nil {
			return findings{}, err
		}
	}
	together, err := s.runner(mixName, p, p.mixContext)
	if err != nil {
		return findings{}, err
	}
	mixed, err := together.measureSteps(ctx, alone.those(ways), lines, func(there []string, native sizes) []step {
		return mixSteps(there, limits, o.mixes, o.seed, native.context)
	})
	if err != nil {
		return findings{}, err
	}
	found := findings{slices.Concat(singles, mixed), alone.absent}
	for _, summary := range summarize(found.points) {
		if err := lines.Write(summary); err != nil {
			return findings{}, err
		}
	}
	return found, nil
}

// measureSteps measures the ways without a limit, plans steps for the ways that the
// driver has, and measures the steps.
func (r *runner) measureSteps(ctx context.Context, ways []string, lines *report.Lines, plan func([]string, sizes) []step) ([]Point, error) {
	if err := r.measureNative(ctx, union(ways, exactWay)); err != nil {
		return nil, err
	}
	var points []Point
	for _, step := range plan(r.those(ways), r.native) {
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
