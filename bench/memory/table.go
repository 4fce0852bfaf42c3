// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// writeTable prints the summary, the ways that drivers do not have, and the points that
// break a rule.
func writeTable(w io.Writer, found findings, summaries []Summary) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "profile\tway\tpoints\tworst over limit, MiB\tworst shortfall, %\trefused within limit\terrors\tbroken\t")
	for _, s := range summaries {
		fmt.Fprintf(t, "%s\t%s\t%d\t%.1f\t%.3f\t%d\t%v\t%d\t\n", s.Profile, s.Way, s.Points,
			float64(s.OverLimit)/mib, s.ShortfallPercent, s.RefusedWithinLimit, s.Errors, s.Broken)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, a := range found.absent {
		if _, err := fmt.Fprintf(w, "left out: %s: %s, as the driver has no %s\n", a.Profile, a.Way, a.Call); err != nil {
			return err
		}
	}
	for _, p := range found.points {
		if p.Broken == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "BROKEN: %s: %s at %.0f MiB: %s\n", p.Profile, p.Way, float64(p.Limit)/mib, p.Broken); err != nil {
			return err
		}
	}
	return nil
}
