// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nri-vgpu/nri-vgpu/bench/chart"
)

// utilisationTime is the time of each container in the chart of utilisation. Containers that
// saturate the GPU run one after another. Each container has a different limit, and the last
// container has no limit.
const utilisationTime = 4 * time.Second

var (
	utilisationLimits  = []int{20, 40, 60, 80, 0}
	utilisationKernels = []float64{200, 5000} // µs
)

// Utilisation is a line of the output: the GPU time of one container over time.
type Utilisation struct {
	ID           string  `json:"id"`
	Workload     string  `json:"workload"`
	KernelUS     float64 `json:"kernel_us"`
	LimitPercent int     `json:"limit_percent"` // 0 is none
	// Windows are consecutive windows that start at the first work.
	Windows []Window `json:"windows"`
}

// Window is the GPU time around an instant.
type Window struct {
	AtS            float64 `json:"at_s"`
	GPUTimePercent float64 `json:"gpu_time_percent"`
}

// drawUtilisation measures the utilisation and draws the chart. drawUtilisation returns an error on
// a real GPU, which does not report GPU times.
func drawUtilisation(ctx context.Context, m machine, journal *journal, dir string, progress io.Writer) error {
	s, ok := m.(*simulated)
	if !ok {
		return errors.New("draw the utilisation: a simulated GPU is necessary")
	}
	figure := chart.Figure{
		Title:    "GPU utilisation by limit",
		Subtitle: "Consecutive containers that saturate the GPU; windows of 100 ms",
		Columns:  len(utilisationKernels),
	}
	for _, limit := range utilisationLimits {
		figure.Legend = append(figure.Legend, limitName(limit))
	}
	for _, kernel := range utilisationKernels {
		panel := chart.Lines{
			Title: "kernels of " + length(kernel), Y: percents(),
			X: chart.Axis{Label: "s", Max: utilisationTime.Seconds(), Ticks: []float64{0, 1, 2, 3, 4}},
		}
		for _, limit := range utilisationLimits {
			fmt.Fprintf(progress, "kernels of %s, limit %s\n", length(kernel), limitName(limit))
			points, err := s.utilisation(ctx, load{kernelUS: kernel, pattern: allPatterns[0], limit: limit})
			if err != nil {
				return fmt.Errorf("measure limit %s: %w", limitName(limit), err)
			}
			panel.Series = append(panel.Series, points)
			if err := journal.write(utilisationOf(kernel, limit, points)); err != nil {
				return err
			}
		}
		figure.Panels = append(figure.Panels, panel)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the directory of charts: %w", err)
	}
	return writeFigure(filepath.Join(dir, "compute-utilisation.svg"), figure)
}

func limitName(limit int) string {
	if limit == 0 {
		return "no limit"
	}
	return strconv.Itoa(limit) + " %"
}

func utilisationOf(kernel float64, limit int, points []chart.Point) Utilisation {
	u := Utilisation{
		ID: fmt.Sprintf("utilisation/%s/%d", formatNumber(kernel), limit), Workload: "utilisation",
		KernelUS: kernel, LimitPercent: limit,
	}
	for _, p := range points {
		u.Windows = append(u.Windows, Window{round(p.X), round(p.Y)})
	}
	return u
}

// utilisation returns the GPU time of one container from its first work on.
func (s *simulated) utilisation(ctx context.Context, l load) (points []chart.Point, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch, err := s.watch(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, watch.stop()) }()
	t, err := s.host.startTenant(ctx, l, "--duration", seconds(utilisationTime+2*startTimeout))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.stop()) }()
	watch.add(t)
	if _, err := watch.follow(span{measure: utilisationTime + policyWindow}); err != nil {
		return nil, err
	}
	series := watch.series[0]
	began, ok := series.began()
	if !ok {
		return nil, errors.New("the container did no work")
	}
	return series.between(began, began+utilisationTime).overTime(began), nil
}
