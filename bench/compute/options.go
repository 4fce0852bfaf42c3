// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// options are the options of the command line.
type options struct {
	build, output, charts, read  string
	commit, tables               string
	cards, driver, profileDir    string
	workloads, kernels, patterns string
	limits, policy               string
	warmup, duration             time.Duration
	quick, resume, check, list   bool
	policies, utilisation        bool
}

// quickly are the values that --quick sets for options that the command line omits.
var quickly = map[string]string{
	"patterns":  "async,launch-and-wait,varying",
	"limits":    "30",
	"workloads": "single,pair,triple,quota",
	"warmup":    "500ms",
	"duration":  "2s",
}

// shortest is the shortest measurement, because each measurement includes the first second.
const shortest = time.Second

func (o *options) register(flags *flag.FlagSet) {
	flags.StringVar(&o.build, "build", "build", "directory of the built project")
	flags.StringVar(&o.commit, "commit", "", "commit of the sources, for the heading of the output")
	flags.StringVar(&o.cards, "cards", "", "cards to simulate, separated by commas: kind, or a profile's name; empty: all")
	flags.StringVar(&o.driver, "driver", "r580-h200", "profile of the driver of all cards except kind")
	flags.StringVar(&o.profileDir, "profile-dir", "gpusim/profiles", "directory with the profiles")
	flags.StringVar(&o.tables, "tables", "", "file for a table for each card, as Markdown")
	flags.StringVar(&o.output, "output", "", "file for the JSON lines, besides the standard output")
	flags.BoolVar(&o.resume, "resume", false, "keep the points in --output and measure only the missing points")
	flags.StringVar(&o.read, "read", "", "summarize and draw the points in this file without measuring")
	flags.StringVar(&o.charts, "charts", "", "directory for the charts, as SVG")
	flags.StringVar(&o.workloads, "workloads", strings.Join(allWorkloads, ","), "workloads to measure")
	flags.StringVar(&o.kernels, "kernels", joined(allKernels, formatNumber), "kernel lengths in µs, of containers by themselves")
	flags.StringVar(&o.patterns, "patterns", joined(allPatterns, func(p pattern) string { return p.name }), "ways of launching, of containers by themselves")
	flags.StringVar(&o.limits, "limits", joined(allLimits, strconv.Itoa), "limits in percent, of containers by themselves")
	flags.StringVar(&o.policy, "policy", "--policy share", "vgpuctl's arguments for the policy that lends idle time")
	flags.DurationVar(&o.warmup, "warmup", time.Second, "time before each measurement")
	flags.DurationVar(&o.duration, "duration", 3*time.Second, "time of each measurement; longer for long launches")
	flags.BoolVar(&o.quick, "quick", false, "measure a few points, for a short time each")
	flags.BoolVar(&o.check, "check", false, "exit with 1 when a criterion fails")
	flags.BoolVar(&o.policies, "policies", false, "draw only the GPU time under each policy, in --charts")
	flags.BoolVar(&o.utilisation, "utilisation", false, "draw only the containers' GPU time over time by limit, in --charts")
	flags.BoolVar(&o.list, "list", false, "list the points without measuring")
}

// settle sets the values that --quick implies.
func (o *options) settle(flags *flag.FlagSet) error {
	if o.quick {
		given := map[string]bool{}
		flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
		for name, value := range quickly {
			if given[name] {
				continue
			}
			if err := flags.Set(name, value); err != nil {
				return err
			}
		}
	}
	if o.duration < shortest || o.warmup < 0 {
		return fmt.Errorf("--duration must be at least %s, --warmup not negative", shortest)
	}
	return nil
}

func (o *options) span() span { return span{o.warmup, o.duration} }

// reference returns the span of runs without limits. Runs without limits have a steady rate
// immediately.
func (o *options) reference() span {
	s := o.span()
	return span{min(s.warmup, time.Second) / 2, max(shortest, min(s.measure, 3*time.Second)/2)}
}

// selection returns the points that the options select.
func (o *options) selection() (selection, error) {
	s := selection{quick: o.quick}
	var err error
	if s.workloads, err = chosen("workloads", o.workloads, allWorkloads, func(w string) string { return w }); err != nil {
		return s, err
	}
	if s.patterns, err = chosen("patterns", o.patterns, allPatterns, func(p pattern) string { return p.name }); err != nil {
		return s, err
	}
	if s.kernels, err = numbers("kernels", o.kernels, 1, 1e7); err != nil {
		return s, err
	}
	limits, err := numbers("limits", o.limits, 1, 100)
	if err != nil {
		return s, err
	}
	for _, limit := range limits {
		s.limits = append(s.limits, int(limit))
	}
	return s, nil
}

// chosen returns those elements of all whose names are in list.
func chosen[T any](option, list string, all []T, name func(T) string) ([]T, error) {
	var some []T
	for _, word := range strings.Split(list, ",") {
		i := slices.IndexFunc(all, func(v T) bool { return name(v) == word })
		if i < 0 {
			return nil, fmt.Errorf("--%s has %q; allowed: %s", option, word, joined(all, name))
		}
		some = append(some, all[i])
	}
	return some, nil
}

func numbers(option, list string, least, most float64) ([]float64, error) {
	var values []float64
	for _, word := range strings.Split(list, ",") {
		v, err := strconv.ParseFloat(word, 64)
		if err != nil || !(v >= least && v <= most) {
			return nil, fmt.Errorf("--%s has %q; allowed: %g to %g", option, word, least, most)
		}
		values = append(values, v)
	}
	return values, nil
}

func joined[T any](values []T, text func(T) string) string {
	words := make([]string, len(values))
	for i, v := range values {
		words[i] = text(v)
	}
	return strings.Join(words, ",")
}
