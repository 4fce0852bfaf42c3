// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
)

// Verdict is the result of a check.
type Verdict string

// These constants are the verdicts.
const (
	Holds       Verdict = "holds"
	DoesNotHold Verdict = "does not hold"
	NotTested   Verdict = "not tested"
)

// Fact is a measurement without a verdict.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Row is the result of one check.
type Row struct {
	Group   string  `json:"group"`
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	// Bound is the required value, Figure the measured value.
	Bound  string `json:"bound,omitempty"`
	Figure string `json:"figure,omitempty"`
	// Why is the reason that the check was not possible, or the message of a
	// failed program.
	Why string `json:"why,omitempty"`
	// Shares contains each tenant's share in a check of GPU time.
	Shares []Share `json:"shares,omitempty"`
}

// Share is a tenant's part of the GPU's time. Limit, Got and Reach are
// percentages.
type Share struct {
	Pattern  string  `json:"pattern"`
	KernelUS float64 `json:"kernel_us"`
	LengthUS float64 `json:"native_length_us"` // of a kernel, measured without limits
	Reach    float64 `json:"native_percent"`   // used without limits
	Limit    float64 `json:"limit_percent"`
	Got      float64 `json:"gpu_time_percent"`
}

// Report is the result of a run.
type Report struct {
	Version string `json:"version"` // of vgpuctl
	Time    string `json:"time"`    // RFC 3339, UTC
	Quick   bool   `json:"quick"`
	Card    string `json:"card"`
	Driver  string `json:"driver"`
	Facts   []Fact `json:"facts"`
	Rows    []Row  `json:"rows"`
}

// Count returns the number of rows with a verdict.
func (r Report) Count(v Verdict) int {
	n := 0
	for i := range r.Rows {
		if r.Rows[i].Verdict == v {
			n++
		}
	}
	return n
}

// Summary formats the counts of the verdicts in a line.
func (r Report) Summary() string {
	return fmt.Sprintf("%d hold, %d do not hold, %d not tested", r.Count(Holds), r.Count(DoesNotHold), r.Count(NotTested))
}

// WriteJSON writes the report as an indented JSON object.
func WriteJSON(w io.Writer, r Report) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

// WriteTable writes the report for a terminal.
func WriteTable(w io.Writer, r Report) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range r.Facts {
		fmt.Fprintf(t, "%s\t%s\n", f.Name, f.Value)
	}
	fmt.Fprintln(t)
	fmt.Fprintln(t, "GROUP\tCHECK\tVERDICT\tBOUND\tFIGURE")
	for i := range r.Rows {
		row := &r.Rows[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", row.Group, row.Name, row.Verdict, row.Bound, row.outcome())
	}
	fmt.Fprintf(t, "\n%s\n", r.Summary())
	return t.Flush()
}

// outcome returns the figure and the reason.
func (r *Row) outcome() string {
	why := show.OneLine(r.Why)
	if r.Figure == "" || why == "" {
		return r.Figure + why
	}
	return r.Figure + "; " + why
}
