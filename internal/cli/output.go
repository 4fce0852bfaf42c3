// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
)

// outputFlag adds the flag for the output format, which defaults to the table.
func outputFlag(cmd *cobra.Command, format *string, allowed []string) {
	usage := strings.Join(allowed, ", ")
	if allowed[len(allowed)-1] == show.FormatRaw {
		usage += " (tab-separated, unrounded, no headings)"
	}
	cmd.Flags().StringVarP(format, "output", "o", show.FormatTable, usage)
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(allowed, cobra.ShellCompDirectiveNoFileComp))
}

// report writes a value as JSON or YAML, or calls table.
func report(out io.Writer, format string, value any, table func(io.Writer) error) error {
	if format == show.FormatTable {
		return table(out)
	}
	return show.Encode(out, format, value)
}
