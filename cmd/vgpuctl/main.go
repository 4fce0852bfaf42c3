// Command vgpuctl runs programs under GPU limits without Kubernetes, and shows
// limits and use.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/ctl"
	"github.com/nri-vgpu/nri-vgpu/pkg/doctor"
	"github.com/nri-vgpu/nri-vgpu/pkg/query"
	"github.com/nri-vgpu/nri-vgpu/pkg/version"
)

// exitAway is the status where no agent answers.
const exitAway = 3

func main() {
	root := vgpuctl()
	switch name := filepath.Base(os.Args[0]); {
	case ctl.IsMgctl(name):
		root = mgctl()
	case name == plugin || name == completer:
		root = kubectlVgpu()
		root.SetArgs(completing(os.Args))
	}
	err := root.Execute()
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", root.DisplayName(), err)
	if errors.Is(err, query.ErrAway) {
		os.Exit(exitAway)
	}
	var status statusError
	if errors.As(err, &status) {
		os.Exit(status.status)
	}
	os.Exit(1)
}

func vgpuctl() *cobra.Command {
	root := &cobra.Command{
		Use:           "vgpuctl",
		Short:         "Run programs under GPU limits, see limits and use, and what is wrong",
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
		Short: "Run a program under limits, without Kubernetes",
		Long: `Run a program, with all that it starts, under limits on one GPU or several.
The program takes vgpuctl's place: process id, terminal, signals, exit status.

Runs with the same --group share one limit; the first gives it, the others
leave it out. This keeps programs to what was agreed; it is no fence against
one that wants out, for which there are containers.`,
		Example: `  vgpuctl run --memory 2Gi -- python train.py
  vgpuctl run --memory 2Gi --cores 30 --gpu 1 --group lab -- ./a
  vgpuctl run --group lab -- ./b
  vgpuctl run --cores 20 --cores-max 50 -- ./c`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := ctl.ParseRequest(memory, cores, gpus)
			if err != nil {
				return err
			}
			if err := request.SetMaximum(policy, most); err != nil {
				return err
			}
			if request.Empty() && group == "" {
				return errors.New("nothing to hold the program to; give --memory, --cores or both, or a --group that has them")
			}
			return ctl.Run(cmd.Context(), request, group, args)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false)
	flags.StringVar(&memory, "memory", "", "memory of each GPU, such as 2Gi; all of it if left out")
	flags.IntVar(&cores, "cores", 0, "percent of each GPU's time; no limit if left out")
	flags.IntVar(&most, "cores-max", 0, "makes --cores a guarantee: up to so many percent of each GPU's time while your other runs with a maximum leave some idle")
	flags.StringVar(&policy, "policy", "", "cap, the default, is --cores-max as --cores, never more; share is --cores-max 100")
	flags.StringArrayVar(&gpus, "gpu", nil, "index or UUID of a GPU, may be repeated; the first if left out")
	flags.StringVar(&group, "group", "", "name of the runs that share the limit")
	return cmd
}

// formats are the ways in which status writes.
var formats = map[string]func(io.Writer, []ctl.Holder) error{
	"table": ctl.WriteTable,
	"json":  ctl.WriteJSON,
}

func statusCommand() *cobra.Command {
	var output, runDir string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show each GPU's limit and use, of this container or of all on the node",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			write, ok := formats[output]
			if !ok {
				return fmt.Errorf("--output is %q; allowed: table, json", output)
			}
			holders, err := ctl.Status(ctl.Places{
				RunDir:   runDir,
				RunPages: os.Getenv("NRI_VGPU_DIR"),
				Groups:   ctl.GroupsDir(os.Getenv, os.Getuid()),
			})
			return errors.Join(write(cmd.OutOrStdout(), holders), err)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	cmd.Flags().StringVar(&runDir, "run-dir", "/run/nri-vgpu", "the agent's paths.run_dir")
	return cmd
}

// errUnsound says that doctor found something; what, it has said.
var errUnsound = errors.New("this node has problems; what mends them stands behind the arrows")

func doctorCommand() *cobra.Command {
	var output, path, root string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look what keeps nri-vgpu from working on this node, and say what mends it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg := config.Default()
			if path != "" {
				var err error
				if cfg, err = config.Load(path); err != nil {
					return err
				}
			}
			if err := doctor.Enter(root); err != nil {
				return err
			}
			findings := doctor.Examine(doctor.Gather(cmd.Context(), cfg))
			write := doctor.WriteTable
			switch output {
			case "table":
			case "json":
				write = doctor.WriteJSON
			default:
				return fmt.Errorf("--output is %q; allowed: table, json", output)
			}
			if err := write(cmd.OutOrStdout(), findings); err != nil {
				return err
			}
			if !doctor.Sound(findings) {
				return errUnsound
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	cmd.Flags().StringVar(&path, "config", "", "the node's config.toml; without it the defaults hold")
	cmd.Flags().StringVar(&root, "root", "", "where the node's root directory is mounted, in a container; its network has to be the node's")
	return cmd
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run:   func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), version.Version) },
	}
}

// watchCommand is for ctl.Run alone.
func watchCommand() *cobra.Command {
	var detached bool
	cmd := &cobra.Command{
		Use:    ctl.WatchCommand,
		Hidden: true,
		Args:   cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			return ctl.Watch(args[0], args[1], detached)
		},
	}
	cmd.Flags().BoolVar(&detached, "detached", false, "stay and wait")
	return cmd
}
