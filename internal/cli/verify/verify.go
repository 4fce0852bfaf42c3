// SPDX-License-Identifier: Apache-2.0

// Package verify is the acceptance test of a card and a driver. The package runs
// workloads without limits and under limits, and reports which of the promised limits
// hold.
package verify

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/cli/local"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
)

// Options are the options of a verification.
type Options struct {
	// Quick omits most checks.
	Quick bool
	// Only selects checks by "group: name". Only may be nil.
	Only *regexp.Regexp
	// GPU is an index or a UUID, "" for the first GPU.
	GPU string
	// Measure is the duration of a tenant's measurement. 0 stands for 2 s, or 0.9 s in a
	// quick run.
	Measure time.Duration
	// Progress is called before each check.
	Progress func(done, all int, name string)
}

// run is one verification.
type run struct {
	*runner
	opts    Options
	start   start
	natives map[string]native // results without limits, by load.String
	base    *uint64           // bytes of GPU memory in use before the first check
}

// check is a check that results in one row.
type check struct {
	group, name string
	find        func(ctx context.Context) Row
}

// Run runs the verification. The error reports that the verification was not possible. Broken
// limits are in the report.
func Run(ctx context.Context, opts Options) (Report, error) {
	if err := local.NotLimited(); err != nil {
		return Report{}, err
	}
	r, err := newRunner(opts.GPU)
	if err != nil {
		return Report{}, err
	}
	defer r.close()
	v := &run{runner: r, opts: opts, natives: map[string]native{}}
	if err := v.begin(ctx); err != nil {
		return Report{}, err
	}
	return v.all(ctx)
}

// begin examines the driver and the card, and returns an error if the card is busy.
func (v *run) begin(ctx context.Context) error {
	if err := v.run(ctx, 0, hold{}, &v.start, "card"); err != nil {
		return fmt.Errorf("examine the GPU: %w", err)
	}
	v.gpu = v.start.UUID
	return v.start.busy()
}

// all runs all checks, and reads the clocks before and after.
func (v *run) all(ctx context.Context) (Report, error) {
	report := Report{
		Version: version.Version, Time: time.Now().UTC().Format(time.RFC3339), Quick: v.opts.Quick,
		Card: v.start.Name, Driver: v.start.Before.NVML.Driver, Facts: v.start.facts(),
	}
	clock, err := v.startClock(ctx)
	if err != nil {
		return report, err
	}
	report.Facts = append(report.Facts, v.cardFacts(ctx)...)
	checks := v.chosen()
	if len(checks) == 0 {
		return report, errors.New("no check has such a name; without --only, the report lists all checks")
	}
	for i, c := range checks {
		if v.opts.Progress != nil {
			v.opts.Progress(i, len(checks), c.group+": "+c.name)
		}
		row := c.find(ctx)
		row.Group, row.Name = c.group, c.name
		if err := context.Cause(ctx); err != nil {
			return report, err
		}
		report.Rows = append(report.Rows, row)
	}
	fact, err := clock.finish(v.leastClock())
	if err != nil {
		return report, fmt.Errorf("compare the clocks: %w", err)
	}
	report.Facts = append(report.Facts, fact)
	return report, nil
}

// measure returns the shortest duration of a tenant's measurement.
func (v *run) measure() time.Duration {
	switch {
	case v.opts.Measure > 0:
		return v.opts.Measure
	case v.opts.Quick:
		return 900 * time.Millisecond
	}
	return 2 * time.Second
}

// chosen returns the selected checks.
func (v *run) chosen() []check {
	var chosen []check
	for _, c := range v.plan() {
		if v.opts.Only == nil || v.opts.Only.MatchString(c.group+": "+c.name) {
			chosen = append(chosen, c)
		}
	}
	return chosen
}

// cardFacts measures time slices and hardware queues. If a measurement fails, the fact is the
// error.
func (v *run) cardFacts(ctx context.Context) []Fact {
	var q queues
	facts := []Fact{v.namesFact()}
	if err := v.run(ctx, 0, hold{}, &q, "card", "--look", "queues"); err != nil {
		facts = append(facts, Fact{"hardware queues", err.Error()})
	} else {
		facts = append(facts, q.fact())
	}
	stop, err := v.beside(ctx, hold{}, "spin", "--kernel-us", "20000", "--duration", "60")
	if err != nil {
		return append(facts, Fact{"time slice", err.Error()})
	}
	defer stop()
	time.Sleep(v.settle())
	var t turns
	if err := v.run(ctx, 0, hold{}, &t, "card", "--look", "slice"); err != nil {
		return append(facts, Fact{"time slice", err.Error()})
	}
	return append(facts, t.fact())
}

// settle returns the time that a process may need to start work on the GPU.
func (v *run) settle() time.Duration {
	return 300*time.Millisecond + 2*time.Duration((v.start.InitMS+v.start.ContextMS)*float64(time.Millisecond))
}

// leastClock returns the shortest duration of the comparison of clocks.
func (v *run) leastClock() time.Duration {
	switch {
	case v.opts.Only != nil:
		return time.Second
	case v.opts.Quick:
		return 5 * time.Second
	}
	return time.Minute
}

// clock is the process that compares the GPU's clock with the host's.
type clock struct {
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	began   time.Time
}

func (v *run) startClock(ctx context.Context) (*clock, error) {
	c := &clock{command: v.command(ctx, hold{}, "card", "--look", "clock"), began: time.Now()}
	c.command.Stderr = os.Stderr
	in, err := c.command.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := c.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.in, c.out = in, bufio.NewReader(out)
	if err := c.command.Start(); err != nil {
		return nil, fmt.Errorf("compare the clocks: %w", err)
	}
	time.Sleep(v.settle()) // wait, so that the first readings measure no other work
	return c, nil
}

// finish reads the clocks again, at the earliest after least, and returns the drift.
func (c *clock) finish(least time.Duration) (Fact, error) {
	time.Sleep(time.Until(c.began.Add(least)))
	c.in.Close()
	line, err := c.out.ReadBytes('\n')
	if err := errors.Join(err, c.command.Wait()); err != nil {
		return Fact{}, err
	}
	var d drift
	if err := json.Unmarshal(line, &d); err != nil {
		return Fact{}, err
	}
	return d.fact(), nil
}
