// SPDX-License-Identifier: Apache-2.0

// Command compute measures the accuracy of compute limits. The command measures
// the GPU time of containers under limits, alone and side by side, for several
// kernel lengths and ways of launching. The command also measures the latency of
// a short kernel beside a container that saturates the GPU.
//
// On a simulated GPU the simulator's oracle reports GPU times. On a real GPU, GPU times are
// unknown. Therefore the command compares throughput under limits with throughput without limits.
//
// The command prints each point as a line of JSON. At the end, the command writes charts and a
// summary by the criteria of acceptance.
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
	"strings"
	"syscall"
	"time"

	"github.com/nri-vgpu/nri-vgpu/bench/internal/report"
	"github.com/nri-vgpu/nri-vgpu/bench/internal/tempdir"
)

// errFailed reports that the measurements succeeded and a criterion fails.
var errFailed = errors.New("a criterion for compute limits fails")

func main() {
	var o options
	o.register(flag.CommandLine)
	flag.Parse()
	err := o.settle(flag.CommandLine)
	if err == nil {
		err = interruptible(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "compute:", err)
		os.Exit(1)
	}
}

// interruptible runs the benchmark. On a signal, interruptible kills the programs and removes the
// directories.
func interruptible(o options) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return run(ctx, o, os.Stdout, os.Stderr)
}

func run(ctx context.Context, o options, out, progress io.Writer) error {
	records, err := obtain(ctx, o, out, progress)
	// An interrupted run also summarizes its points.
	if len(records) == 0 {
		return err
	}
	hold := true
	for _, of := range byProfile(records) {
		results := summarize(of)
		hold = hold && passed(results)
		fmt.Fprintf(progress, "\n%s\n", of[0].Profile)
		err = errors.Join(err, writeSummary(progress, results))
	}
	if o.tables != "" {
		err = errors.Join(err, writeTables(o.tables, records))
	}
	if o.charts != "" {
		err = errors.Join(err, draw(o.charts, records))
	}
	if o.check && !hold {
		err = errors.Join(err, errFailed)
	}
	return err
}

// obtain reads or measures points.
func obtain(ctx context.Context, o options, out, progress io.Writer) ([]Record, error) {
	if o.read != "" {
		return readRecords(o.read)
	}
	selection, err := o.selection()
	if err != nil {
		return nil, err
	}
	profiles, err := o.profiles()
	if err != nil {
		return nil, err
	}
	steps := plan(selection)
	if o.list {
		for _, p := range profiles {
			for _, s := range steps {
				fmt.Fprintln(out, p.name, s.id)
			}
		}
		return nil, nil
	}
	return measureAll(ctx, o, profiles, steps, out, progress)
}

func measureAll(ctx context.Context, o options, profiles []profile, steps []step, out, progress io.Writer) (records []Record, err error) {
	temp, remove, err := tempdir.New()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	h, err := newHost(o, temp)
	if err != nil {
		return nil, err
	}
	if !h.knowsPolicy(ctx) {
		fmt.Fprintf(progress, "skipped the policy that lends: vgpuctl run has no %q\n", o.policy)
		steps = slices.DeleteFunc(steps, func(s step) bool { return s.workload == share })
	}
	if o.policies {
		return nil, drawPolicies(ctx, newRunner(o, h, temp, kind).machine, o.charts)
	}
	journal, records, err := openJournal(out, o.output, o.resume)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, journal.close()) }()
	span := o.span()
	if o.utilisation {
		span.warmup, span.measure = 0, utilisationTime
	}
	conditions := report.Now(newRunner(o, h, temp, kind).machine.kind(), o.commit)
	if err := journal.write(heading{"compute", conditions, span.warmup.Seconds(), span.measure.Seconds()}); err != nil {
		return records, err
	}
	if o.utilisation {
		return nil, drawUtilisation(ctx, newRunner(o, h, temp, kind).machine, journal, o.charts, progress)
	}
	return runProfiles(ctx, o, h, temp, profiles, steps, records, journal, progress)
}

// runProfiles measures the steps on each card and appends the results to records.
func runProfiles(ctx context.Context, o options, h *host, temp string, profiles []profile, steps []step, records []Record, journal *journal, progress io.Writer) ([]Record, error) {
	for i, p := range profiles {
		r := newRunner(o, h, temp, p)
		fmt.Fprintf(progress, "card %d/%d: %s\n", i+1, len(profiles), p.name)
		var err error
		if records, err = r.runAll(ctx, missing(steps, p.name, records), records, journal, progress); err != nil {
			return records, err
		}
	}
	return records, nil
}

// runAll measures the steps and appends the results to records.
func (r *runner) runAll(ctx context.Context, steps []step, records []Record, journal *journal, progress io.Writer) ([]Record, error) {
	for i, s := range steps {
		var left time.Duration
		for _, later := range steps[i:] {
			left += r.expected(later)
		}
		fmt.Fprintf(progress, "%d/%d %s, %s left\n", i+1, len(steps), s.id, left.Round(time.Second))
		record, err := r.run(ctx, s)
		if err != nil {
			return records, err
		}
		records = append(records, record)
		if err := journal.write(record); err != nil {
			return records, err
		}
	}
	return records, nil
}

// missing returns the steps without a record for this driver and card.
func missing(steps []step, profile string, records []Record) []step {
	return slices.DeleteFunc(slices.Clone(steps), func(s step) bool {
		return slices.ContainsFunc(records, func(r Record) bool { return r.ID == s.id && r.Profile == profile })
	})
}

func newHost(o options, temp string) (*host, error) {
	build, err := filepath.Abs(o.build)
	if err != nil {
		return nil, err
	}
	return &host{build: build, runDir: temp, policy: strings.Fields(o.policy)}, nil
}

// profiles returns the profiles to simulate. A real GPU has a single empty
// profile.
func (o *options) profiles() ([]profile, error) {
	if hasGPU() {
		return []profile{{}}, nil
	}
	all, err := profilesIn(o.profileDir, o.driver)
	if err != nil {
		return nil, err
	}
	return chosenProfiles(all, o.cards)
}

func newRunner(o options, h *host, temp string, p profile) *runner {
	r := &runner{is: p, span: o.span(), reference: o.reference(), unlimited: map[string]outcome{}, capacities: map[string]float64{}}
	if hasGPU() {
		r.machine = &real{h}
	} else {
		r.machine = &simulated{h, temp, p}
	}
	return r
}
