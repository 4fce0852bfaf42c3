// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/verify"
)

func verifyCommand() *cobra.Command {
	var opts verify.Options
	var only, jsonFile, htmlFile string
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Test whether limits hold on this machine's GPU",
		Long: `Test whether limits hold on this machine's GPU, without Kubernetes or a CUDA toolkit.
The test takes five minutes, or one with --quick. Nothing else should use the GPU
meanwhile.

verify runs workloads without limits and then under limits, as vgpuctl run does:
memory by each way of allocating, GPU time for kernels of four lengths in five
patterns, tenants side by side, captures of streams, programs that have hung under
interposers, and the latency of short kernels. It computes a tenant's GPU time as the
number of completed kernels times the length of such a kernel without limits, so the
figure does not depend on the library under test.

The table shows for each check whether it holds, does not hold or was not tested, with
the bound and the measured figure. Exit status: 0 all hold, 1 something does not hold,
2 the test could not run.`,
		Example: `  vgpuctl verify --quick
  vgpuctl verify --json report.json --html report.html
  vgpuctl verify --only '^compute: one stream'`,
		Args: func(cmd *cobra.Command, args []string) error {
			return notVerified(cobra.NoArgs(cmd, args))
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if only != "" {
				var err error
				if opts.Only, err = regexp.Compile(only); err != nil {
					return notVerified(fmt.Errorf("--only is %q; allowed: a regular expression: %w", only, err))
				}
			}
			report, err := verifyNow(cmd.Context(), opts)
			if err == nil {
				err = errors.Join(verify.WriteTable(cmd.OutOrStdout(), report),
					writeFile(jsonFile, report, verify.WriteJSON), writeFile(htmlFile, report, verify.WriteHTML))
			}
			if err == nil && report.Count(verify.DoesNotHold) > 0 {
				return statusError{errors.New("not all limits hold: see the rows marked \"does not hold\""), exitDoesNotHold}
			}
			return notVerified(err)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return notVerified(err) })
	flags := cmd.Flags()
	flags.BoolVar(&opts.Quick, "quick", false, "run only the most important checks, in a minute")
	flags.StringVar(&only, "only", "", "run only checks whose \"group: name\" matches this regular expression")
	flags.DurationVar(&opts.Measure, "measure", 0, "time to measure each tenant, such as 500ms; default: 2s, or 900ms with --quick")
	flags.StringVar(&opts.GPU, "gpu", "", "index or UUID of the GPU; default: the first")
	flags.StringVar(&jsonFile, "json", "", "write the report to this file as JSON")
	flags.StringVar(&htmlFile, "html", "", "write the report to this file as a self-contained HTML page")
	return cmd
}

// notVerified attaches exitNotVerified, the exit status of an incomplete test,
// to err.
func notVerified(err error) error {
	if err == nil {
		return nil
	}
	return statusError{err, exitNotVerified}
}

// verifyNow runs the verification until it ends or is interrupted. verifyNow
// shows progress on a terminal.
func verifyNow(ctx context.Context, opts verify.Options) (verify.Report, error) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	opts.Progress = progress(os.Stderr)
	defer clearProgress(os.Stderr)
	return verify.Run(ctx, opts)
}

// progress returns a function that shows the current check on a terminal, or
// nil without a terminal.
func progress(out *os.File) func(done, all int, name string) {
	if !show.IsTerminal(out) {
		return nil
	}
	return func(done, all int, name string) { fmt.Fprintf(out, "\r\x1b[K[%d/%d] %s", done+1, all, name) }
}

// clearProgress erases the progress line from a terminal.
func clearProgress(out *os.File) {
	if show.IsTerminal(out) {
		fmt.Fprint(out, "\r\x1b[K")
	}
}

// writeFile writes a report to path. An empty path disables the report.
func writeFile(path string, report verify.Report, write func(io.Writer, verify.Report) error) (err error) {
	if path == "" {
		return nil
	}
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return write(file, report)
}
