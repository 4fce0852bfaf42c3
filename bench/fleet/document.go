// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/bench/chart"
)

// paperTable returns the paper's experiment as a table with a row for each list and a column for
// each policy. A column contains the measured results and, in brackets, the published results.
func paperTable(all []filled) string {
	var b strings.Builder
	b.WriteString("| list |")
	for _, p := range policies {
		b.WriteString(" " + p.name + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(policies)) + "\n")
	for _, name := range listsOf(all) {
		b.WriteString("| " + name + " |")
		for _, p := range policies {
			r := find(all, name, p.name)
			fmt.Fprintf(&b, " %.1f / %.1f", r.At100, r.At130)
			if len(r.Published) > 0 {
				fmt.Fprintf(&b, " (%.1f / %.1f)", r.Published[0], r.Published[1])
			}
			b.WriteString(" |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// modesTable returns the simulations as a table.
func modesTable(all []result) string {
	var b strings.Builder
	b.WriteString("| pods request | mode | policy | refusals in 1,000 bindings | utilisation | fragmentation | wait, p99 | waiting at the end |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|\n")
	for _, r := range all {
		fmt.Fprintf(&b, "| %s | %s | %s | %.1f | %.1f %% | %.1f %% | %.0f s | %d |\n", r.Resources, r.Mode, r.Policy, r.Refusals,
			100*r.Utilisation, 100*r.Fragmentation, r.WaitP99, r.Waiting)
	}
	return b.String()
}

// listsOf returns the names of the lists, in their order.
func listsOf(all []filled) (names []string) {
	for _, r := range all {
		if !slices.Contains(names, r.List) {
			names = append(names, r.List)
		}
	}
	return names
}

// find returns the result of a policy on a list.
func find(all []filled, list, policy string) filled {
	i := slices.IndexFunc(all, func(r filled) bool { return r.List == list && r.Policy == policy })
	if i < 0 {
		return filled{}
	}
	return all[i]
}

// paperFigure returns the paper's experiment as a figure.
func paperFigure(all []filled) chart.Figure {
	figure := chart.Figure{
		Title:    "How full policies of scheduling fill a cluster",
		Subtitle: "Allocated GPUs of 1,213 nodes after requests of 100 % and 130 % of the GPUs",
		Columns:  2, Reference: "published",
	}
	for _, p := range policies {
		figure.Legend = append(figure.Legend, p.name)
	}
	for _, name := range listsOf(all) {
		panel := chart.Bars{Title: name, X: "requested", Y: chart.Axis{Label: "allocated, %", Min: 75, Max: 100, Ticks: []float64{75, 80, 85, 90, 95, 100}}}
		for i, demand := range demands {
			group := chart.Group{Label: fmt.Sprintf("%.0f %%", 100*demand)}
			for _, p := range policies {
				r := find(all, name, p.name)
				bar := chart.Bar{Value: []float64{r.At100, r.At130}[i], Mark: math.NaN()}
				if len(r.Published) > 0 {
					bar.Mark = r.Published[i]
				}
				group.Bars = append(group.Bars, bar)
			}
			panel.Groups = append(panel.Groups, group)
		}
		figure.Panels = append(figure.Panels, panel)
	}
	return figure
}

// document writes the tables. With a trace, document also writes the figure.
func document(o options, paper []filled, modes []result) error {
	if o.tables != "" {
		text := modesTable(modes)
		if len(paper) > 0 {
			text = paperTable(paper) + "\n" + text
		}
		if err := os.WriteFile(o.tables, []byte(text), 0o644); err != nil {
			return fmt.Errorf("write the tables: %w", err)
		}
	}
	if o.figure == "" || len(paper) == 0 {
		return nil
	}
	var picture bytes.Buffer
	if err := paperFigure(paper).Write(&picture); err != nil {
		return fmt.Errorf("draw the figure: %w", err)
	}
	if err := os.WriteFile(o.figure, picture.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write the figure: %w", err)
	}
	return nil
}
