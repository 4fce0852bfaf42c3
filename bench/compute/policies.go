// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/nri-vgpu/nri-vgpu/bench/chart"
)

// The chart of the policies shows one container that always saturates the GPU, and another
// container that saturates the GPU for a while.
const (
	policyAlone  = 2 * time.Second // before and after
	policyBeside = 2 * time.Second
	policyWindow = 100 * time.Millisecond
)

var policyLoads = []load{
	{kernelUS: 200, pattern: allPatterns[0], limit: 30},
	{kernelUS: 200, pattern: allPatterns[0], limit: 70},
}

// drawPolicies runs the two containers under each policy and draws their GPU times. A real GPU does
// not report GPU times.
func drawPolicies(ctx context.Context, m machine, dir string) error {
	s, ok := m.(*simulated)
	if !ok {
		return errors.New("draw the policies: a simulated GPU is necessary")
	}
	figure := chart.Figure{
		Title:    "GPU time by policy",
		Subtitle: "Both containers saturate the GPU, the second from 2 s to 4 s; windows of 100 ms",
		Legend:   []string{"limit 30 %", "limit 70 %"},
		Columns:  2,
	}
	for _, policy := range []string{"cap", "share"} {
		all, err := s.overTime(ctx, policy == "share")
		if err != nil {
			return fmt.Errorf("measure policy %s: %w", policy, err)
		}
		panel := chart.Lines{
			Title: policy, X: chart.Axis{Label: "s", Max: (2*policyAlone + policyBeside).Seconds(), Ticks: []float64{0, 2, 4, 6}},
			Y: percents(),
		}
		for _, one := range all {
			panel.Series = append(panel.Series, one.overTime(all[0][0].at))
		}
		figure.Panels = append(figure.Panels, panel)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the directory of charts: %w", err)
	}
	return writeFigure(filepath.Join(dir, "compute-policies.svg"), figure)
}

// overTime runs the two containers and returns the samples of each container.
func (s *simulated) overTime(ctx context.Context, lends bool) (all []series, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch, err := s.watch(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, watch.stop()) }()
	start := func(l load) (tenant, error) {
		l.lends = lends
		t, err := s.host.startTenant(ctx, l, "--duration", seconds(startTimeout))
		if err == nil {
			watch.add(t)
		}
		return t, err
	}
	first, err := start(policyLoads[0])
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, first.stop()) }()
	if _, err := watch.follow(span{measure: policyAlone}); err != nil {
		return nil, err
	}
	second, err := start(policyLoads[1])
	if err != nil {
		return nil, err
	}
	_, err = watch.follow(span{measure: policyBeside})
	if err = errors.Join(err, second.stop()); err != nil {
		return nil, err
	}
	all = []series{nil, watch.series[1]}
	watch.tenants, watch.series = watch.tenants[:1], watch.series[:1]
	end := watch.last + policyAlone
	for err == nil && watch.last < end {
		err = watch.next()
	}
	all[0] = watch.series[0]
	began, _ := all[0].began()
	all[0] = all[0].between(began, watch.last)
	return all, err
}

// overTime returns the shares in consecutive windows, by the middles of the
// windows.
func (s series) overTime(began time.Duration) []chart.Point {
	var points []chart.Point
	for first := 0; first < len(s); {
		last := first
		for last < len(s) && s[last].at-s[first].at < policyWindow {
			last++
		}
		if last == len(s) {
			break
		}
		window := s[first : last+1]
		middle := window[0].at + (s[last].at-s[first].at)/2
		points = append(points, chart.Point{X: (middle - began).Seconds(), Y: window.share()})
		first = last
	}
	return points
}
