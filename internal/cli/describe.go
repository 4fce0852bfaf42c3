// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/nri-vgpu/nri-vgpu/internal/cli/explain"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/fleet"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/why"
)

func describePodCommand(c *cluster) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "pod POD...",
		Aliases: []string{"pods", "po"},
		Short:   "Explain why a pod waits, was refused or is slow",
		Long: `Show which part of GPUs a pod requests and has, and explain why it waits, was refused or
is slow. The text after each arrow states what to do.

The command samples the pod twice, a second apart. Exit status: 0 if the pod exists, even
if something is wrong with it.`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: c.complete("pods"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.connected(cmd, func(ctx context.Context, f *fleet.Fleet, namespace string) error {
				return describe(args, cmd.OutOrStdout(), output, func(name string) (description, error) {
					p, err := explain.GatherPod(ctx, f, namespace, name)
					return description{p.Write, func() any { return p.Report() }}, err
				})
			})
		},
	}
	outputFlag(cmd, &output, show.ReportFormats)
	return cmd
}

// mostNodes is the number of nodes that the command "why" shows without --all.
const mostNodes = 20

func whyCommand(c *cluster) *cobra.Command {
	var output string
	var all bool
	cmd := &cobra.Command{
		Use:   "why POD...",
		Short: "Explain for each node and GPU why a pod waits",
		Long: `Show for each node and GPU what a waiting pod lacks there, or why the node does not
accept the pod: cordons, taints, selectors and the sums of resources. The nodes that are
closest to a fit come first.

Nodes that list their GPUs (scheduling.mode = "scheduler") are judged as
nri-vgpu-scheduler judges them. For other nodes the command asks their agents.

Exit status: 0 if the pod exists, whether it waits or not.`,
		Example: `  kubectl vgpu why train-1
  kubectl vgpu why -n shop train-1 --all`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: c.complete("pods"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.connected(cmd, func(ctx context.Context, f *fleet.Fleet, namespace string) error {
				most := mostNodes
				if all {
					most = 0
				}
				return describe(args, cmd.OutOrStdout(), output, func(name string) (description, error) {
					answer, err := why.Gather(ctx, f, namespace, name)
					table := func(out io.Writer) error { return answer.Write(out, most) }
					return description{table, func() any { return answer.Report() }}, err
				})
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, fmt.Sprintf("show all nodes instead of %d; JSON and YAML contain all", mostNodes))
	outputFlag(cmd, &output, show.ReportFormats)
	return cmd
}

// description is the description of one object, as text and as a value for JSON and YAML.
type description struct {
	table func(io.Writer) error
	value func() any
}

// describe gathers and writes the description of each name: as text with an empty line between
// descriptions, or as one list. An error about a name does not omit the other names.
func describe(names []string, out io.Writer, format string, gather func(name string) (description, error)) error {
	if err := show.CheckFormat(format, show.ReportFormats); err != nil {
		return err
	}
	values, text := []any{}, false
	var failed error
	for _, name := range names {
		d, err := gather(name)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		if format != show.FormatTable {
			values = append(values, d.value())
			continue
		}
		if text {
			fmt.Fprintln(out)
		}
		text = true
		if err := d.table(out); err != nil {
			return err
		}
	}
	if format == show.FormatTable {
		return failed
	}
	return errors.Join(show.Encode(out, format, values), failed)
}

func describeNodeCommand(c *cluster) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "node NODE...",
		Aliases: []string{"nodes", "no"},
		Short:   "Show a node's GPUs, their users, and what is wrong",
		Long: `Show what a node offers, which containers have which part of each GPU, what is wrong with
the node and how to fix it, and its latest Events of nri-vgpu.

Exit status: 0 if the node exists, even if something is wrong with it; see doctor.`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: c.complete("nodes"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.connected(cmd, func(ctx context.Context, f *fleet.Fleet, _ string) error {
				return describe(args, cmd.OutOrStdout(), output, func(name string) (description, error) {
					n, err := explain.GatherNode(ctx, f, name)
					return description{n.Write, func() any { return n.Report() }}, err
				})
			})
		},
	}
	outputFlag(cmd, &output, show.ReportFormats)
	return cmd
}
