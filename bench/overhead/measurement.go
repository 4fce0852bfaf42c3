// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"slices"

	"github.com/nri-vgpu/nri-vgpu/bench/internal/report"
)

// These constants are the parts that can be measured separately.
const (
	partCalls  = "calls"
	partStarts = "starts"
	partStorms = "storms"
)

// These constants are the simulated drivers.
var (
	bare     = driver{name: "bare"}
	h200     = driver{name: "r580-h200", profile: "r580-h200"}
	slowNVML = driver{name: "r535-h100", profile: "r535-h100", starts: true}
)

// stormBound bounds the duration of concurrent starts relative to native starts.
var stormBound = rule{mostRatio: 1.05}

// measurement is one run of the benchmark.
type measurement struct {
	options
	programs programs
	parts    map[string]bool
	temp     string
	lines    *report.Lines
	results  []Result
	uses     []NVMLUse
}

func (m *measurement) broken() bool {
	return slices.ContainsFunc(m.results, func(r Result) bool { return r.Broken }) ||
		slices.ContainsFunc(m.uses, func(u NVMLUse) bool { return u.Broken })
}

func (m *measurement) run(ctx context.Context) error {
	gpu := report.GPU()
	if err := m.lines.Write(conditions{"overhead", report.Now(gpu, m.commit)}); err != nil {
		return err
	}
	if gpu == report.Real {
		return m.at(ctx, driver{}, m.onReal)
	}
	if err := m.at(ctx, bare, m.onBare); err != nil {
		return err
	}
	if m.parts[partCalls] {
		if err := m.at(ctx, h200, m.onH200); err != nil {
			return err
		}
	}
	if m.parts[partStarts] || m.parts[partStorms] {
		return m.at(ctx, slowNVML, m.onSlowNVML)
	}
	return nil
}

// at measures on one machine, and then counts the processes that called NVML on the machine.
func (m *measurement) at(ctx context.Context, d driver, measure func(context.Context, *site) error) (err error) {
	dir, err := os.MkdirTemp(m.temp, "site-")
	if err != nil {
		return err
	}
	var s *site
	if d.name == "" {
		s, err = realSite(ctx, m.programs, dir)
	} else {
		s, err = newSite(ctx, m.programs, dir, d)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := measure(ctx, s); err != nil {
		return err
	}
	use, err := s.nvml()
	if err != nil || use == nil {
		return err
	}
	m.uses = append(m.uses, *use)
	return m.lines.Write(use)
}

// add adds the results of a selected part.
func (m *measurement) add(part string, measure func() ([]Result, error)) error {
	if !m.parts[part] {
		return nil
	}
	results, err := measure()
	if err != nil {
		return err
	}
	m.results = append(m.results, results...)
	for _, r := range results {
		if err := m.lines.Write(r); err != nil {
			return err
		}
	}
	return nil
}

// onBare measures the cost of the interposer itself. On the bare driver, which starts immediately,
// any other work of a process is relatively large. Therefore no bound applies to storms on this
// driver.
func (m *measurement) onBare(ctx context.Context, s *site) error {
	return errors.Join(
		m.add(partCalls, func() ([]Result, error) { return s.calls(ctx, bareCalls, m.runs, m.rounds) }),
		m.add(partStarts, func() ([]Result, error) { return s.starts(ctx, m.startRounds) }),
		m.add(partStorms, func() ([]Result, error) { return s.storms(ctx, m.stormRounds, m.processes, rule{}) }))
}

func (m *measurement) onH200(ctx context.Context, s *site) error {
	return m.add(partCalls, func() ([]Result, error) { return s.calls(ctx, h200Calls, m.runs, m.rounds) })
}

func (m *measurement) onSlowNVML(ctx context.Context, s *site) error {
	return errors.Join(
		m.add(partStarts, func() ([]Result, error) { return s.starts(ctx, m.startRounds) }),
		m.add(partStorms, func() ([]Result, error) { return s.storms(ctx, m.stormRounds, m.processes, stormBound) }))
}

func (m *measurement) onReal(ctx context.Context, s *site) error {
	return errors.Join(
		m.add(partCalls, func() ([]Result, error) { return s.calls(ctx, h200Calls, m.runs, m.rounds) }),
		m.add(partStarts, func() ([]Result, error) { return s.starts(ctx, m.startRounds) }),
		m.add(partStorms, func() ([]Result, error) { return s.storms(ctx, m.stormRounds, m.processes, stormBound) }))
}
