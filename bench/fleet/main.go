// SPDX-License-Identifier: Apache-2.0

// Command fleet simulates clusters of GPU nodes, in seconds. The simulation counts the bound pods
// that a node refuses, in each mode and policy of scheduling. With a public trace, the simulation
// also measures the part of a cluster that each policy fills. The simulation compares these results
// with the results of a paper.
//
// The simulation uses the ledger, the planner and the dialects of the agent. The simulated
// scheduler has the filters and scores of kube-scheduler for extended resources and labels.
//
// The command exits with 1 if a promise is broken.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/nri-vgpu/nri-vgpu/bench/internal/report"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

type options struct {
	commit, output, trace, tables, figure string
	nodes, seeds                          int
	load                                  float64
	life, length                          time.Duration
}

func main() {
	var o options
	report.Flags(flag.CommandLine, &o.commit, &o.output)
	flag.StringVar(&o.trace, "trace", "", "directory with the lists of Alibaba's cluster-trace-gpu-v2023, for the paper's experiment")
	flag.StringVar(&o.tables, "tables", "", "file for tables in Markdown")
	flag.StringVar(&o.figure, "figure", "", "file for a figure of the paper's experiment, as SVG")
	flag.IntVar(&o.nodes, "nodes", 300, "nodes, each with eight GPUs of 80 GiB")
	flag.IntVar(&o.seeds, "seeds", 10, "fillings of the trace's cluster by each policy")
	flag.Float64Var(&o.load, "load", 0.85, "average request of all pods, in parts of the cluster")
	flag.DurationVar(&o.life, "life", 5*time.Minute, "mean life of a pod")
	flag.DurationVar(&o.length, "length", 5*time.Minute, "length of the measurement, in the cluster's time")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

func run(o options) (err error) {
	if flag.NArg() > 0 || o.nodes < 1 || o.seeds < 1 || o.load <= 0 || o.life <= 0 || o.length <= 0 {
		return errors.New("every number and duration must be positive, without other arguments: see --help")
	}
	lines, err := report.Open(o.output)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lines.Close()) }()
	heading := struct {
		Bench string `json:"bench"`
		report.Conditions
		Nodes int     `json:"nodes"`
		Load  float64 `json:"load"`
	}{"fleet", report.Now("simulated", o.commit), o.nodes, o.load}
	if err := lines.Write(heading); err != nil {
		return err
	}
	var filled []filled
	if o.trace != "" {
		filled, err = paper(o, lines)
	}
	simulated, errModes := modesOf(o, lines)
	return errors.Join(err, errModes, document(o, filled, simulated))
}

// result is a line of a simulation.
type result struct {
	Mode          string  `json:"mode"`
	Policy        string  `json:"policy"`
	Resources     string  `json:"resources"`
	Binds         int     `json:"binds"`
	Refusals      float64 `json:"refusals_per_1000"`
	Utilisation   float64 `json:"utilisation"`
	Fragmentation float64 `json:"fragmentation"`
	WaitP50       float64 `json:"wait_p50_s"`
	WaitP99       float64 `json:"wait_p99_s"`
	Waiting       int     `json:"waiting"`
	Patches       float64 `json:"patches_per_bind"`
}

// modesOf simulates each mode and policy.
func modesOf(o options, lines *report.Lines) (results []result, err error) {
	var broken []error
	for _, kind := range builtIn {
		all := scenarios(o, kind.sizes)
		outcomes := make([]outcome, len(all))
		errs := make([]error, len(all))
		inParallel(len(all), func(i int) { outcomes[i], errs[i] = simulate(all[i]) })
		if err := errors.Join(errs...); err != nil {
			return results, err
		}
		for i, out := range outcomes {
			r := result{
				all[i].mode.name, all[i].policy, kind.resources, out.binds, 1000 * part(out.refusals, out.binds), out.utilisation, out.fragmentation,
				out.wait(0.5).Seconds(), out.wait(0.99).Seconds(), out.waiting, part(out.patches, out.binds),
			}
			if err := lines.Write(r); err != nil {
				return results, err
			}
			results = append(results, r)
			broken = append(broken, r.broken())
		}
		broken = append(broken, behind(results, kind.resources))
	}
	return results, errors.Join(broken...)
}

// behind checks that the mode fit fills a cluster with each policy as full as the mode scheduler,
// within 2 %.
func behind(results []result, resources string) error {
	var broken []error
	for _, policy := range []string{config.PlaceBinpack, config.PlaceSpread} {
		of := func(mode string) float64 {
			i := slices.IndexFunc(results, func(r result) bool { return r.Mode == mode && r.Policy == policy && r.Resources == resources })
			return results[i].Utilisation
		}
		if fit, exact := of("fit"), of("scheduler"); fit < 0.98*exact {
			broken = append(broken, fmt.Errorf("fit, %s, %s: utilisation %.3f, by the exact scheduler %.3f", policy, resources, fit, exact))
		}
	}
	return errors.Join(broken...)
}

// inParallel calls do for each i below n, with as many concurrent calls as the machine has
// processors.
func inParallel(n int, do func(i int)) {
	turns := make(chan struct{}, runtime.GOMAXPROCS(0))
	var group sync.WaitGroup
	for i := range n {
		turns <- struct{}{}
		group.Go(func() {
			do(i)
			<-turns
		})
	}
	group.Wait()
}

// most is the promised highest number of refusals per 1,000 bindings, by mode.
var most = map[string]float64{"fit": 5, "scheduler": 0}

func (r result) broken() error {
	if bound, promised := most[r.Mode]; promised && r.Refusals > bound {
		return fmt.Errorf("%s, %s, %s: %.2f refusals per 1,000 bindings, at most %g promised", r.Mode, r.Policy, r.Resources, r.Refusals, bound)
	}
	return nil
}

func part(n, all int) float64 { return float64(n) / float64(max(all, 1)) }

// wait returns a quantile of the waits, or 0 if no pod started.
func (o outcome) wait(q float64) time.Duration {
	if len(o.waits) == 0 {
		return 0
	}
	return o.waits[int(q*float64(len(o.waits)-1))]
}

// scenarios returns the scenarios of all modes and policies for pods of some sizes.
func scenarios(o options, sizes []size) (all []scenario) {
	for _, m := range modes {
		policies := []string{"binpack", "spread"}
		if m.offer == nil {
			policies = append(policies, byFragmentation)
		} else {
			policies = append(policies, unscored)
		}
		for _, policy := range policies {
			all = append(all, scenario{
				mode: m, policy: policy, sizes: sizes, nodes: o.nodes, gpus: 8, memory: 80 << 30,
				load: o.load, life: o.life, length: o.length, seed: 1,
			})
		}
	}
	return all
}

// filled is a line of the paper's experiment. The numbers are means over the seeds, in percent of
// the GPUs.
type filled struct {
	List      string    `json:"list"`
	Policy    string    `json:"policy"`
	At100     float64   `json:"allocated_at_100"`
	At130     float64   `json:"allocated_at_130"`
	Published []float64 `json:"published,omitempty"`
	PerNode   float64   `json:"us_per_node"`
}

// paper repeats the paper's experiment on all lists of a trace.
func paper(o options, lines *report.Lines) (all []filled, err error) {
	nodes, lists, err := readTrace(o.trace)
	if err != nil {
		return nil, err
	}
	var broken []error
	for _, l := range lists {
		results := map[string]filled{}
		for _, p := range policies {
			r := filled{List: l.name, Policy: p.name}
			fillings := make([]filling, o.seeds)
			inParallel(o.seeds, func(seed int) { fillings[seed] = fill(nodes, l.tasks, p.make, uint64(seed)) })
			for _, one := range fillings {
				r.At100 += one.allocated[0] / float64(o.seeds)
				r.At130 += one.allocated[1] / float64(o.seeds)
				r.PerNode += float64(one.perNode) / float64(time.Microsecond) / float64(o.seeds)
			}
			if known, ok := published[l.name][p.name]; ok {
				r.Published = known[:]
			}
			if err := lines.Write(r); err != nil {
				return all, err
			}
			results[p.name] = r
			all = append(all, r)
		}
		broken = append(broken, compare(results)...)
	}
	return all, errors.Join(broken...)
}

// compare checks two promises on one list. The simulator reproduces the paper's results for the
// simple policies within a point. The policy fragmentation fills the cluster at least as full as
// FGD.
func compare(results map[string]filled) (broken []error) {
	const points, perNode = 1, 50
	for _, name := range []string{"random", "bestfit"} {
		r := results[name]
		for i, got := range []float64{r.At100, r.At130} {
			if len(r.Published) > 0 && (got > r.Published[i]+points || got < r.Published[i]-points) {
				broken = append(broken, fmt.Errorf("%s, %s: %.1f %% allocated, %.1f %% published", r.List, name, got, r.Published[i]))
			}
		}
	}
	ours, best := results[byFragmentation], results["fgd"]
	if ours.At100 < best.At100 || ours.At130 < best.At130 {
		broken = append(broken, fmt.Errorf("%s: %.2f and %.2f %% allocated, by FGD %.2f and %.2f", ours.List, ours.At100, ours.At130, best.At100, best.At130))
	}
	if ours.PerNode > perNode {
		broken = append(broken, fmt.Errorf("%s: %.0f µs for each node, at most %d promised", ours.List, ours.PerNode, perNode))
	}
	return broken
}
