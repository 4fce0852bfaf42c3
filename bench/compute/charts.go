// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/bench/chart"
)

// draw writes the charts for which records has points.
func draw(dir string, records []Record) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the directory of charts: %w", err)
	}
	shown := ofCard(records, shownCard)
	for name, figure := range map[string]chart.Figure{
		"compute-cards.svg":        cardsFigure(records),
		"compute-share.svg":        shareFigure(shown),
		"compute-error.svg":        errorFigure(shown),
		"compute-side-by-side.svg": groupFigure(shown),
		"compute-latency.svg":      latencyFigure(shown),
	} {
		if len(figure.Panels) == 0 {
			continue
		}
		if err := writeFigure(filepath.Join(dir, name), figure); err != nil {
			return err
		}
	}
	return nil
}

// shownCard is the card whose points have their own charts.
const shownCard = "h200"

// ofCard returns the points of a card. If the card has no points, ofCard returns the points of the
// first card.
func ofCard(records []Record, card string) []Record {
	all := byProfile(records)
	for _, of := range all {
		if (profile{name: of[0].Profile}).card() == card {
			return of
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[0]
}

// cardsFigure shows, for each card, the fraction of the containers whose error does not
// exceed a value.
func cardsFigure(records []Record) chart.Figure {
	figure := chart.Figure{
		Title:     "Errors of compute limits by card",
		Subtitle:  "Part of the containers by the points between GPU time and target; shaded: within 2 points",
		Legend:    []string{"alone", "side by side", "with CPU quotas", "metered less used"},
		Reference: "the target",
		Columns:   3,
	}
	for _, of := range byProfile(records) {
		panel := chart.Lines{
			Title:     profile{name: of[0].Profile}.card(),
			X:         chart.Axis{Label: "part, %", Max: 100, Ticks: []float64{0, 25, 50, 75, 100}},
			Y:         errorAxis(4),
			Reference: []chart.Point{{X: 0, Y: 0}, {X: 100, Y: 0}}, Band: [2]float64{-2, 2},
		}
		for _, errors := range errorsByKind(of) {
			panel.Series = append(panel.Series, distribution(errors, panel.Y))
		}
		figure.Panels = append(figure.Panels, panel)
	}
	return figure
}

// errorsByKind returns the errors of containers alone, side by side and with CPU quotas. The fourth
// list contains the containers' charged time less GPU time.
func errorsByKind(records []Record) (lines [4][]float64) {
	for _, r := range records {
		if !r.limited() {
			continue
		}
		kind := 0
		switch {
		case r.Workload == quotas:
			kind = 2
		case isGroup(r):
			kind = 1
		}
		for _, t := range r.all() {
			lines[kind] = append(lines[kind], t.ErrorPoints)
			if t.MeteredPercent != nil && t.GPUTimePercent != nil {
				lines[3] = append(lines[3], *t.MeteredPercent-*t.GPUTimePercent)
			}
		}
	}
	return lines
}

// distribution returns the cumulative distribution of values. distribution moves values beyond the
// axis to the end of the axis.
func distribution(values []float64, axis chart.Axis) []chart.Point {
	slices.Sort(values)
	var points []chart.Point
	for i, v := range values {
		points = append(points, chart.Point{X: 100 * float64(i+1) / float64(len(values)), Y: min(axis.Max, max(axis.Min, v))})
	}
	return points
}

func writeFigure(path string, figure chart.Figure) error {
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("draw a chart: %w", err)
	}
	return errors.Join(figure.Write(file), file.Close())
}

// percents returns the axis of GPU time.
func percents() chart.Axis {
	return chart.Axis{Label: "GPU time, %", Max: 100, Ticks: []float64{0, 25, 50, 75, 100}}
}

// limitAxis returns an axis with a tick at each measured limit.
func limitAxis() chart.Axis {
	axis := chart.Axis{Label: "limit, %", Max: 100}
	for _, limit := range allLimits {
		axis.Ticks = append(axis.Ticks, float64(limit))
	}
	return axis
}

func shareFigure(records []Record) chart.Figure {
	figure := chart.Figure{
		Title:     "GPU time under a compute limit",
		Subtitle:  "One container by itself, by way of launching and length of its kernels",
		Reference: "the limit",
		Columns:   3,
	}
	figure.Legend, figure.Panels = curves(records, Tenant.Share, func(title string, lines [][]chart.Point) chart.Panel {
		return chart.Lines{Title: title, X: limitAxis(), Y: percents(), Series: lines,
			Reference: []chart.Point{{X: 0, Y: 0}, {X: 100, Y: 100}}}
	})
	return figure
}

func errorFigure(records []Record) chart.Figure {
	figure := chart.Figure{
		Title:    "Error of a compute limit",
		Subtitle: "GPU time less the target of the container, in points; shaded: within 2 points",
		Columns:  3,
	}
	values := func(t Tenant) float64 { return t.ErrorPoints }
	most := 2.0
	for _, r := range records {
		if r.Workload == single {
			most = max(most, math.Abs(r.ErrorPoints))
		}
	}
	figure.Legend, figure.Panels = curves(records, values, func(title string, lines [][]chart.Point) chart.Panel {
		return chart.Lines{Title: title, X: limitAxis(), Y: errorAxis(most), Series: lines,
			Reference: []chart.Point{{X: 0, Y: 0}, {X: 100, Y: 0}}, Band: [2]float64{-2, 2}}
	})
	return figure
}

// errorAxis returns an axis for errors up to this size in both directions.
func errorAxis(most float64) chart.Axis {
	top := niceAbove(most * 1.05)
	return chart.Axis{Label: "error, points", Min: -top, Max: top, Ticks: []float64{-top, -top / 2, 0, top / 2, top}}
}

// niceAbove returns the least of 1, 2, 4, 6, 10, 20, … that is not below v.
func niceAbove(v float64) float64 {
	for unit := 1.0; ; unit *= 10 {
		for _, step := range []float64{1, 2, 4, 6} {
			if step*unit >= v {
				return step * unit
			}
		}
	}
}

// curves returns the names of the lines, and a panel for each pattern. A panel has a line
// over the limits for each kernel length.
func curves(records []Record, of func(Tenant) float64, panel func(string, [][]chart.Point) chart.Panel) ([]string, []chart.Panel) {
	var tenants []Tenant
	for _, r := range records {
		if r.Workload == single {
			tenants = append(tenants, *r.Tenant)
		}
	}
	kernels := kernelsOf(tenants)
	var panels []chart.Panel
	for _, p := range allPatterns {
		lines := make([][]chart.Point, len(kernels))
		some := false
		for _, t := range tenants {
			if i := slices.Index(kernels, t.KernelUS); t.Pattern == p.name && i >= 0 {
				lines[i] = append(lines[i], chart.Point{X: float64(t.LimitPercent), Y: of(t)})
				some = true
			}
		}
		for _, line := range lines {
			slices.SortFunc(line, func(a, b chart.Point) int { return int(a.X - b.X) })
		}
		if some {
			panels = append(panels, panel(p.name, lines))
		}
	}
	names := make([]string, len(kernels))
	for i, us := range kernels {
		names[i] = length(us)
	}
	return names, panels
}

// kernelsOf returns the kernel lengths of the tenants, at most as many as a figure can show.
func kernelsOf(tenants []Tenant) []float64 {
	var kernels []float64
	for _, t := range tenants {
		kernels = append(kernels, t.KernelUS)
	}
	slices.Sort(kernels)
	kernels = slices.Compact(kernels)
	return kernels[:min(len(kernels), chart.MaxSeries)]
}

// length formats the length of a kernel.
func length(us float64) string {
	if us < 1000 {
		return formatNumber(us) + " µs"
	}
	return formatNumber(us/1000) + " ms"
}

func groupFigure(records []Record) chart.Figure {
	figure := chart.Figure{
		Title:     "GPU time side by side",
		Subtitle:  "Containers that saturate the GPU, by the lengths of their kernels",
		Legend:    []string{"first", "second", "third"},
		Reference: "limit",
		Columns:   3,
	}
	at := map[string]int{}
	for _, r := range records {
		if !isGroup(r) {
			continue
		}
		title := strings.Join(kernelNames(r.Tenants), ", ")
		if _, known := at[title]; !known {
			at[title] = len(figure.Panels)
			figure.Panels = append(figure.Panels, chart.Bars{Title: title, X: "limits, %", Y: percents()})
		}
		panel := figure.Panels[at[title]].(chart.Bars)
		panel.Groups = append(panel.Groups, groupOf(r))
		figure.Panels[at[title]] = panel
	}
	return figure
}

func kernelNames(tenants []Tenant) []string {
	names := make([]string, len(tenants))
	for i, t := range tenants {
		names[i] = length(t.KernelUS)
	}
	return names
}

func groupOf(r Record) chart.Group {
	var limits []string
	var bars []chart.Bar
	for _, t := range r.Tenants {
		limits = append(limits, strconv.Itoa(t.LimitPercent))
		bars = append(bars, chart.Bar{Value: t.Share(), Mark: t.TargetPercent})
	}
	return chart.Group{Label: strings.Join(limits, " / "), Bars: bars}
}

func latencyFigure(records []Record) chart.Figure {
	figure := chart.Figure{
		Title:    "Latency beside a container that saturates the GPU",
		Subtitle: fmt.Sprintf("A kernel of %s every %g ms", length(periodicKernelUS), math.Round(periodMS)),
		Legend:   []string{"alone", "plain time-slicing", "both limited to 50 %"},
		Columns:  2,
	}
	most := 0.0
	for _, r := range records {
		if r.Latencies != nil {
			most = max(most, r.Alone.P99MS, r.TimeSlicing.P99MS, r.Limited.P99MS)
		}
	}
	top := niceAbove(most * 1.1)
	axis := chart.Axis{Label: "from launch to end, ms", Max: top, Ticks: []float64{0, top / 4, top / 2, top * 3 / 4, top}}
	for _, r := range records {
		if r.Latencies == nil {
			continue
		}
		figure.Panels = append(figure.Panels, chart.Bars{
			Title: "neighbour's kernels of " + length(r.NeighbourKernelUS),
			Y:     axis,
			Groups: []chart.Group{
				latencyGroup("median", r, func(l Latency) float64 { return l.P50MS }),
				latencyGroup("99th percentile", r, func(l Latency) float64 { return l.P99MS }),
			},
		})
	}
	return figure
}

func latencyGroup(label string, r Record, of func(Latency) float64) chart.Group {
	group := chart.Group{Label: label}
	for _, l := range []Latency{r.Alone, r.TimeSlicing, r.Limited} {
		group.Bars = append(group.Bars, chart.Bar{Value: of(l), Mark: math.NaN()})
	}
	return group
}
