// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/nri-vgpu/nri-vgpu/internal/cli/doctor"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/finding"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/local"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

func vgpuctl() *cobra.Command {
	root := &cobra.Command{
		Use:           "vgpuctl",
		Version:       version.Version,
		Short:         "Run programs under GPU limits, show limits and use, find problems",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	get := getCommand()
	get.AddCommand(gpusCommand(&here{}), podsCommand(&here{}), allCommand())
	root.AddCommand(runCommand(), statusCommand(), topCommand(&here{}), psCommand(&here{}), get, pingCommand(), doctorCommand(), verifyCommand(), versionCommand(), watchCommand())
	return root
}

func runCommand() *cobra.Command {
	var memory, policy, group string
	var cores, most int
	var gpus []string
	cmd := &cobra.Command{
		Use:   "run [flags] -- PROGRAM [ARGUMENT...]",
		Short: "Run a program under limits without Kubernetes",
		Long: `Run a program and all its child processes under limits on one or more GPUs.
The program replaces vgpuctl: it keeps the process id, terminal, signals and
exit status. If the program does not exist, the exit status is 127; if the program
cannot be started, 126; if vgpuctl fails, 1.

Runs with the same --group share one limit; the first run sets the limit, and
later runs omit the limit. The limits bind only programs that cooperate. Run a
program that may evade the limits in a container instead.`,
		Example: `  vgpuctl run --memory 2Gi -- python train.py
  vgpuctl run --memory 2Gi --cores 30 --gpu 1 --group lab -- ./a
  vgpuctl run --group lab -- ./b
  vgpuctl run --cores 20 --cores-max 50 -- ./c`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := local.ParseRequest(memory, cores, gpus)
			if err != nil {
				return err
			}
			if err := request.SetMaximum(policy, most); err != nil {
				return err
			}
			if request.Empty() && group == "" {
				return errors.New("no limit is set: set --memory, --cores or both, or the --group of a run that has limits")
			}
			return unstarted(local.Run(cmd.Context(), request, group, args))
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false)
	flags.StringVar(&memory, "memory", "", "memory of each GPU, such as 2Gi; default: all of it")
	flags.IntVar(&cores, "cores", 0, "percent of each GPU's time; default: no limit")
	flags.IntVar(&most, "cores-max", 0, "maximum percent of each GPU's time, above the guarantee --cores, while your other runs with a maximum leave time idle")
	flags.StringVar(&policy, "policy", "", "cap (default): --cores is also the maximum; share: same as --cores-max 100")
	flags.StringArrayVar(&gpus, "gpu", nil, "index or UUID of a GPU, may be repeated; default: the first")
	flags.StringVar(&group, "group", "", "name of the group of runs that share one limit")
	return cmd
}

func statusCommand() *cobra.Command {
	var output, runDir string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show limits and use of each GPU, for this container or for all on the node",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := show.CheckFormat(output, show.ReportFormats); err != nil {
				return err
			}
			holders, err := local.Status(local.Places{
				RunDir:   runDir,
				RunPages: os.Getenv("NRI_VGPU_DIR"),
				Groups:   local.GroupsDir(os.Getenv, os.Getuid()),
			})
			return errors.Join(report(cmd.OutOrStdout(), output, holders, func(out io.Writer) error { return local.WriteTable(out, holders) }), err)
		},
	}
	outputFlag(cmd, &output, show.ReportFormats)
	cmd.Flags().StringVar(&runDir, "run-dir", "/run/nri-vgpu", "the agent's paths.run_dir")
	return cmd
}

// errUnsound reports that doctor found problems. doctor has already printed the problems.
var errUnsound = errors.New("found problems on this node; to fix a problem, follow the text after its arrow")

func doctorCommand() *cobra.Command {
	var output, path, root string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find the problems of nri-vgpu on this node, and show how to fix them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := show.CheckFormat(output, show.ReportFormats); err != nil {
				return err
			}
			file := config.File{Config: config.Default()}
			if path != "" {
				var err error
				if file, err = config.LoadFile(path); err != nil {
					return err
				}
			}
			if err := doctor.Enter(root); err != nil {
				return err
			}
			findings := doctor.Examine(doctor.Gather(cmd.Context(), file))
			err := report(cmd.OutOrStdout(), output, findings, func(out io.Writer) error { return finding.WriteTable(out, findings) })
			if err != nil {
				return err
			}
			if !finding.Sound(findings) {
				return errUnsound
			}
			return nil
		},
	}
	outputFlag(cmd, &output, show.ReportFormats)
	cmd.Flags().StringVar(&path, "config", "", "path of the node's config.toml; defaults apply without a file")
	cmd.Flags().StringVar(&root, "root", "", "mount point of the node's root, in a container; the container needs the node's network")
	return cmd
}

// watchCommand returns a hidden command that only local.Run starts.
func watchCommand() *cobra.Command {
	var detached bool
	cmd := &cobra.Command{
		Use:    local.WatchCommand,
		Hidden: true,
		Args:   cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			return local.Watch(args[0], args[1], detached)
		},
	}
	cmd.Flags().BoolVar(&detached, "detached", false, "keep running in the foreground")
	return cmd
}

// unstarted attaches the exit status of a program that cannot be started.
func unstarted(err error) error {
	var program local.ProgramError
	switch {
	case !errors.As(err, &program):
		return err
	case program.Missing():
		return statusError{err, exitNotFound}
	}
	return statusError{err, exitNotStartable}
}
