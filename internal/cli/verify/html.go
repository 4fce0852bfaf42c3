// SPDX-License-Identifier: Apache-2.0

package verify

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
)

//go:embed report.html
var page string

var pageTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
	"x":       func(percent float64) string { return fmt.Sprintf("%.1f", 50+5*percent) },
	"y":       func(percent float64) string { return fmt.Sprintf("%.1f", 420-4*percent) },
	"outcome": func(r Row) string { return r.outcome() },
	"class": func(v Verdict) string {
		return map[Verdict]string{Holds: "holds", DoesNotHold: "fails"}[v]
	},
}).Parse(page))

// colours distinguish the patterns of the curve.
var colours = []string{"#0b6fb8", "#c8501e", "#2d8a3e", "#7b4fa3", "#8a6d00", "#555555"}

// series contains the points of one pattern on the curve of shares.
type series struct {
	Name, Colour string
	Points       []Share
	KeyY         int
}

// WriteHTML writes the report as a self-contained page.
func WriteHTML(w io.Writer, r Report) error {
	err := pageTemplate.Execute(w, struct {
		Report
		Series []series
		Ticks  []float64
	}{r, curve(r), []float64{0, 20, 40, 60, 80, 100}})
	if err != nil {
		return fmt.Errorf("write the HTML report: %w", err)
	}
	return nil
}

// curve groups all shares by pattern, in the order of first occurrence.
func curve(r Report) []series {
	var all []series
	for i := range r.Rows {
		for _, share := range r.Rows[i].Shares {
			at := slices.IndexFunc(all, func(s series) bool { return s.Name == share.Pattern })
			if at < 0 {
				at = len(all)
				all = append(all, series{Name: share.Pattern, Colour: colours[at%len(colours)], KeyY: 40 + 18*at})
			}
			all[at].Points = append(all[at].Points, share)
		}
	}
	return all
}
