// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/top"
)

// sight is the data source of the listing commands. On a node and in a container the source is a
// socket; elsewhere the source is the API server.
type sight interface {
	// flags adds the flags that select the source.
	flags(cmd *cobra.Command)
	// open returns the source, and the filter that the flags select.
	open(ctx context.Context) (show.Source, show.Filter, error)
	// waiting returns the pods that request GPUs and hold no GPU.
	waiting(ctx context.Context, have []show.PodEntry) ([]show.PodEntry, error)
	// everywhere selects all namespaces if no flag names a namespace.
	everywhere()
}

// here is the sight of the local node or container.
type here struct{ socket string }

func (h *here) flags(cmd *cobra.Command) { socketFlag(cmd, &h.socket) }

func (h *here) open(context.Context) (show.Source, show.Filter, error) {
	return show.Local{Socket: socketOr(h.socket)}, show.Filter{}, nil
}

func (h *here) waiting(context.Context, []show.PodEntry) ([]show.PodEntry, error) { return nil, nil }
func (h *here) everywhere()                                                       {}

// listing adds the output flags that listing commands share. Nodes have neither memory nor time, so
// their only order is by name.
func listing(cmd *cobra.Command, l *show.Listing) {
	outputFlag(cmd, &l.Format, show.ViewFormats)
	cmd.Flags().BoolVar(&l.NoHeaders, "no-headers", false, "omit the headings of tables")
	if l.Order = show.ByName; cmd.Name() != "nodes" {
		orderFlag(cmd, l)
	}
}

// orderFlag adds the flag for the order of a list, with the current order as its default.
func orderFlag(cmd *cobra.Command, l *show.Listing) {
	cmd.Flags().StringVar(&l.Order, "sort-by", l.Order, strings.Join(show.Orders, ", "))
	_ = cmd.RegisterFlagCompletionFunc("sort-by", cobra.FixedCompletions(show.Orders, cobra.ShellCompDirectiveNoFileComp))
}

// interruptible returns a context that SIGINT and SIGTERM cancel.
func interruptible(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
}

// lister returns a command that writes a list once.
func lister(use, short, long string, s sight, choose func(f *show.Filter, args []string), write func(context.Context, show.Listing, show.Filter, []agentapi.Overview) error) *cobra.Command {
	var l show.Listing
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Long:  long,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := interruptible(cmd)
			defer stop()
			l.Out = cmd.OutOrStdout()
			if err := l.Check(); err != nil {
				return err
			}
			source, filter, err := s.open(ctx)
			if err != nil {
				return err
			}
			choose(&filter, args)
			all, missing := source.Overviews(ctx)
			if missing != nil && len(all) == 0 {
				return missing
			}
			// The list contains the nodes that answered even if other nodes did not answer.
			return errors.Join(write(ctx, l, filter, filter.Apply(all)), filter.Missing(all, missing))
		},
	}
	listing(cmd, &l)
	s.flags(cmd)
	return cmd
}

const exitStatus = `
Exit status: 0 success, 3 no agent answers, 1 any other error.`

// onlyNodes selects nodes with all their containers. Like kubectl get nodes, GPUs and nodes have no
// namespace.
func onlyNodes(f *show.Filter, names []string) { *f = show.Filter{Nodes: names} }

func gpusCommand(s sight) *cobra.Command {
	cmd := lister("gpus [NODE...]", "Show GPUs with their memory, time and health", `Show the GPUs of all nodes, or of the named nodes.

  MEMORY      used by processes and total, as the driver reports it
  ALLOCATED   allocated to containers, of what may be allocated: memory, then time
  TIME        part of the last second in which the GPU computed
  CONTAINERS  containers that may run on the GPU at the same time
`+exitStatus, s,
		onlyNodes,
		func(_ context.Context, l show.Listing, _ show.Filter, all []agentapi.Overview) error {
			return l.GPUs(all)
		})
	cmd.Aliases = []string{"gpu"}
	return cmd
}

func nodesCommand(s sight) *cobra.Command {
	cmd := lister("nodes [NODE...]", "Show nodes with their pool, GPUs, and containers of other device plugins", `Show the nodes that have an agent, or the named nodes.

  POOL           the pool of config.toml whose configuration the node applies
  LEFT OUT       GPUs that the node leaves to other programs (node.gpus)
  OFFERED TWICE  GPUs that another device plugin offers, too
  FOREIGN        containers that request GPUs of another device plugin
`+exitStatus, s,
		onlyNodes,
		func(_ context.Context, l show.Listing, _ show.Filter, all []agentapi.Overview) error {
			return l.Nodes(all)
		})
	cmd.Aliases = []string{"node", "no"}
	return cmd
}

func podsCommand(s sight) *cobra.Command {
	cmd := lister("pods [POD...]", "Show containers with GPUs, with their use and limits", `Show the containers with GPUs, in use or not, with a line for each GPU, and the pods
that wait for GPUs. A name without either is an error.

  MEMORY     used memory and memory limit
  TIME       used part of the GPU's last second, and the limit
  THROTTLED  total time that threads waited because of the compute limit
  REFUSED    allocations that the memory limit refused
`+exitStatus, s,
		func(f *show.Filter, args []string) { f.Names = args },
		func(ctx context.Context, l show.Listing, f show.Filter, all []agentapi.Overview) error {
			entries, err := entriesOf(ctx, s, f, all)
			if err != nil {
				return err
			}
			return errors.Join(l.Pods(entries), f.UnknownPods(entries, all))
		})
	cmd.Aliases = []string{"pod", "po"}
	return cmd
}

// entriesOf returns the containers with GPUs, and the selected pods that wait for GPUs.
func entriesOf(ctx context.Context, s sight, f show.Filter, all []agentapi.Overview) ([]show.PodEntry, error) {
	entries := show.Entries(all)
	waiting, err := s.waiting(ctx, entries)
	for _, e := range waiting {
		if f.Has(e.Namespace, e.Pod) {
			entries = append(entries, e)
		}
	}
	return entries, err
}

func psCommand(s sight) *cobra.Command {
	return lister("ps [POD...]", "Show the processes on GPUs", `Show the processes that use GPUs, with their part of their container's limits.
PID is the process id on the node or, in a container, in that container.
`+exitStatus, s,
		func(f *show.Filter, args []string) { f.Names = args },
		func(ctx context.Context, l show.Listing, f show.Filter, all []agentapi.Overview) error {
			err := l.Processes(all)
			if f.UnknownPods(show.Entries(all), all) == nil {
				return err
			}
			entries, failed := entriesOf(ctx, s, f, all) // a pod that waits has no process
			return errors.Join(err, cmp.Or(failed, f.UnknownPods(entries, all)))
		})
}

// allCommand returns the command that kubectl vgpu runs in agents' pods. Scripts may also run the
// command.
func allCommand() *cobra.Command {
	var h here
	var output string
	var each bool
	cmd := &cobra.Command{
		Use:   "all",
		Short: "Print GPUs, containers and processes of one moment as JSON",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := interruptible(cmd)
			defer stop()
			if err := show.CheckFormat(output, []string{show.FormatJSON}); err != nil {
				return err
			}
			source := show.Local{Socket: socketOr(h.socket)}
			if each {
				return show.AnswerLines(ctx, source, cmd.InOrStdin(), cmd.OutOrStdout())
			}
			return show.WriteAll(ctx, source, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", show.FormatJSON, "json")
	cmd.Flags().BoolVar(&each, "each-line", false, "print once for each line of standard input; stop at its end or after a minute without a line")
	h.flags(cmd)
	return cmd
}

func topCommand(s sight) *cobra.Command {
	var l show.Listing
	var once bool
	cmd := &cobra.Command{
		Use:   "top [NODE...]",
		Short: "Watch GPUs and their containers, with use and limits",
		Long: `Watch the GPUs and the containers on each, with used memory and GPU time against the
limits. A full bar means that the limit is reached. On a terminal, top runs until you
press q; elsewhere it writes a table once.

  m, t, n            sort by memory, by time, by name
  up, down, space, b scroll
  q, ctrl-c          quit

The environment variable NO_COLOR turns colours off.
` + exitStatus,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := interruptible(cmd)
			defer stop()
			if !slices.Contains(show.Orders, l.Order) {
				return fmt.Errorf("--sort-by is %q; allowed: %s", l.Order, strings.Join(show.Orders, ", "))
			}
			s.everywhere()
			source, filter, err := s.open(ctx)
			if err != nil {
				return err
			}
			filter.Nodes = args
			screen, isTerminal := terminal(cmd.OutOrStdout())
			if once || !isTerminal {
				all, missing := source.Overviews(ctx)
				if missing != nil && len(all) == 0 {
					return missing
				}
				table := top.Table(filter.Apply(all), l.Order, !l.NoHeaders)
				_, err := io.WriteString(cmd.OutOrStdout(), table)
				return errors.Join(err, filter.Missing(all, missing))
			}
			return top.Run(ctx, top.Options{
				Source: source, Filter: filter, Order: l.Order, In: os.Stdin, Out: screen, Color: os.Getenv("NO_COLOR") == "",
			})
		},
	}
	l.Order = show.ByMemory
	orderFlag(cmd, &l)
	cmd.Flags().BoolVar(&l.NoHeaders, "no-headers", false, "omit the headings of the table")
	cmd.Flags().BoolVar(&once, "once", false, "write a table once, also on a terminal")
	s.flags(cmd)
	return cmd
}

// terminal returns out as a file, and reports whether both out and standard
// input are terminals.
func terminal(out io.Writer) (*os.File, bool) {
	file, ok := out.(*os.File)
	return file, ok && show.IsTerminal(os.Stdin) && show.IsTerminal(file)
}
