// SPDX-License-Identifier: Apache-2.0

// Package finding contains the results of checks: of vgpuctl doctor on a node, and of kubectl vgpu.
package finding

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Level is the severity of a finding.
type Level string

// These constants are the levels of findings.
const (
	OK      Level = "ok"
	Warning Level = "warning"
	Problem Level = "problem"
)

// Finding is the result of one check.
type Finding struct {
	Check   string `json:"check"`
	Level   Level  `json:"level"`
	Message string `json:"message"`
	// Fix is the command or advice that resolves the finding, "" if no fix is needed or known.
	Fix string `json:"fix,omitempty"`
}

// MeterAdvice names the document for metered GPU time that differs from the observed time.
const MeterAdvice = "docs/how-to/alerts.md#vgpumeterdisagrees lists the possible causes; nri_vgpu_container_distrusted_probes_total counts by cause"

// Sound reports whether no finding is a problem.
func Sound(findings []Finding) bool {
	for _, f := range findings {
		if f.Level == Problem {
			return false
		}
	}
	return true
}

// WriteTable writes a line for each finding, followed by its fix.
func WriteTable(w io.Writer, findings []Finding) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, f := range findings {
		fmt.Fprintf(t, "%s\t%s\t%s\n", f.Level, f.Check, f.Message)
		if f.Fix != "" {
			fmt.Fprintf(t, "\t\t→ %s\n", f.Fix)
		}
	}
	return t.Flush()
}
