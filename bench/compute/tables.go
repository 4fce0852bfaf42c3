// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
)

// byProfile groups the points by driver and card, in the order of measurement.
func byProfile(records []Record) [][]Record {
	var all [][]Record
	at := map[string]int{}
	for _, r := range records {
		i, ok := at[r.Profile]
		if !ok {
			i = len(all)
			at[r.Profile] = i
			all = append(all, nil)
		}
		all[i] = append(all[i], r)
	}
	return all
}

// row is the row of a table for one kind of work.
type row struct {
	work                 string
	points               int
	mean                 float64 // of the absolute errors
	above, below, meters float64 // the greatest
	why                  []string
}

// writeTables writes a table for each driver and card.
func writeTables(path string, records []Record) error {
	var text bytes.Buffer
	fmt.Fprint(&text, "<!-- written by make bench-compute -->\n\n")
	writeOverview(&text, records)
	for _, of := range byProfile(records) {
		fmt.Fprintf(&text, "\n### %s\n\n", of[0].Profile)
		fmt.Fprintln(&text, "| work | containers | mean error | most above | most below | metered, off by | cause of the shortfall |")
		fmt.Fprintln(&text, "|---|---|---|---|---|---|---|")
		for _, r := range rows(of) {
			fmt.Fprintf(&text, "| %s | %d | %.2f | %.2f | %.2f | %.2f | %s |\n",
				r.work, r.points, r.mean, r.above, r.below, r.meters, strings.Join(r.why, "; "))
		}
		for _, r := range of {
			if r.Latencies != nil {
				fmt.Fprintf(&text, "\nA kernel of %s every %g ms beside kernels of %s: p99 %.2f ms alone, %.2f by time-slicing, %.2f with both limited to %d %%.\n",
					length(periodicKernelUS), math.Round(periodMS), length(r.NeighbourKernelUS), r.Alone.P99MS, r.TimeSlicing.P99MS, r.Limited.P99MS, latencyLimit)
			}
		}
	}
	if err := os.WriteFile(path, text.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write the tables: %w", err)
	}
	return nil
}

// writeOverview writes a line for each driver and card. Except for "most above", the columns
// cover only the points in which the card can reach the limits.
func writeOverview(text *bytes.Buffer, records []Record) {
	fmt.Fprintln(text, "| driver and card | containers | mean error | most above | most below | metered, off by | latency, p99: limited, time-slicing |")
	fmt.Fprintln(text, "|---|---|---|---|---|---|---|")
	for _, of := range byProfile(records) {
		var all, exact row
		latency := "–"
		for _, r := range of {
			if r.limited() {
				all.add(r)
				if r.why() == "" {
					exact.add(r)
				}
			}
			if r.Latencies != nil {
				latency = fmt.Sprintf("%.2f, %.2f ms", r.Limited.P99MS, r.TimeSlicing.P99MS)
			}
		}
		fmt.Fprintf(text, "| %s | %d | %.2f | %.2f | %.2f | %.2f | %s |\n", of[0].Profile, all.points,
			exact.mean/float64(max(1, exact.points)), all.above, exact.below, exact.meters, latency)
	}
}

// rows returns the rows of a table, one for each kind of work.
func rows(records []Record) []row {
	var all []row
	for _, r := range records {
		if !r.limited() {
			continue
		}
		work := workOf(r)
		i := slices.IndexFunc(all, func(o row) bool { return o.work == work })
		if i < 0 {
			i = len(all)
			all = append(all, row{work: work})
		}
		all[i].add(r)
	}
	for i := range all {
		all[i].mean /= float64(all[i].points)
	}
	return all
}

// workOf returns the kind of work of a point.
func workOf(r Record) string {
	t := r.all()[0]
	switch {
	case r.Workload == single:
		return "alone, " + t.Pattern
	case r.Workload == quotas && r.Tenant != nil:
		return fmt.Sprintf("alone, %g CPUs", t.CPUCores)
	case r.Workload == quotas:
		return fmt.Sprintf("pair, %g CPUs each", t.CPUCores)
	}
	return r.Workload
}

// add adds a point's containers.
func (o *row) add(r Record) {
	for _, t := range r.all() {
		o.points++
		o.mean += math.Abs(t.ErrorPoints)
		o.above = max(o.above, t.ErrorPoints)
		o.below = max(o.below, -t.ErrorPoints)
		if t.MeteredPercent != nil && t.GPUTimePercent != nil {
			o.meters = max(o.meters, math.Abs(*t.MeteredPercent-*t.GPUTimePercent))
		}
	}
	if why := r.why(); why != "" && !slices.Contains(o.why, why) {
		o.why = append(o.why, why)
	}
}
