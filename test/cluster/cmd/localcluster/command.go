// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/nri-vgpu/nri-vgpu/test/cluster"
)

// newCommand returns the root command with all its subcommands.
func newCommand() *cobra.Command {
	var o cluster.Options
	root := &cobra.Command{
		Use:   "localcluster",
		Short: "Real single-node Kubernetes clusters on this machine",
		Long: `localcluster starts etcd, the Kubernetes control plane, kubelet and containerd with NRI in
separate namespaces, without a container engine. The command needs root.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	flags := root.PersistentFlags()
	flags.StringVar(&o.Name, "name", cluster.DefaultName, "the cluster's and its node's name")
	flags.StringVar(&o.StateDir, "state-dir", "", "the cluster's state directory (default "+cluster.DefaultStateDir("NAME")+")")
	root.AddCommand(upCommand(&o), downCommand(&o), statusCommand(&o), kubeconfigCommand(&o), kubectlCommand(&o),
		restartCommand(&o), logsCommand(&o), execCommand(&o), loadImageCommand(&o), volcanoCommand(&o), buildCommand())
	return root
}

func upCommand(o *cluster.Options) *cobra.Command {
	var gpu gpuFlags
	var join string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the cluster, unless the cluster runs already",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.GPU, err = gpu.resolve(); err != nil {
				return err
			}
			if join != "" {
				if o.Control, err = cluster.Find(cluster.Options{Name: join}); err != nil {
					return err
				}
			}
			o.Reuse, o.Out = true, os.Stderr
			c, err := cluster.Up(cmd.Context(), *o)
			if err != nil {
				return err
			}
			fmt.Printf("export KUBECONFIG=%s\n", c.Kubeconfig())
			return nil
		},
	}
	gpu.add(cmd)
	cmd.Flags().StringVar(&join, "join", "", "make the node a worker of this cluster")
	return cmd
}

func downCommand(o *cluster.Options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Take the cluster down and remove all of its files",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			o.Out = os.Stderr
			return cluster.Down(*o)
		},
	}
	cmd.Flags().BoolVar(&o.KeepLogs, "keep-logs", false, "keep the logs in the state directory")
	return cmd
}

func statusCommand(o *cluster.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the components of the cluster",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := cluster.Find(*o)
			if err != nil {
				return err
			}
			components, err := c.Components(cmd.Context())
			if err != nil {
				return err
			}
			fmt.Printf("node %s, address %s, state in %s\n\n", c.NodeName, c.Address, c.StateDir)
			w := tabwriter.NewWriter(os.Stdout, 0, 4, 2, ' ', 0)
			fmt.Fprintln(w, "COMPONENT\tSTATE\tSINCE\tDETAIL")
			for _, s := range components {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", s.Name, s.State, time.Since(s.Since).Round(time.Second), s.Detail)
			}
			return w.Flush()
		},
	}
}

func kubeconfigCommand(o *cluster.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the path of the administrator's kubeconfig",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			c, err := cluster.Find(*o)
			if err != nil {
				return err
			}
			fmt.Println(c.Kubeconfig())
			return nil
		},
	}
}

func kubectlCommand(o *cluster.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "kubectl -- ARGUMENTS",
		Short: "Run kubectl on the cluster",
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := cluster.Find(*o)
			if err != nil {
				return err
			}
			argv := append([]string{"kubectl", "--kubeconfig=" + c.Kubeconfig()}, args...)
			return become(c.Kubectl(), argv, append(os.Environ(), "NO_PROXY="+c.Address))
		},
	}
}

func restartCommand(o *cluster.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "restart COMPONENT",
		Short: "Restart one component and wait until the component serves",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := cluster.Find(*o)
			if err != nil {
				return err
			}
			return c.Restart(cmd.Context(), args[0])
		},
	}
}

func logsCommand(o *cluster.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "logs COMPONENT",
		Short: "Print the output of a component",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := cluster.Find(*o)
			if err != nil {
				return err
			}
			text, err := c.Logs(args[0])
			if err != nil {
				return err
			}
			fmt.Print(text)
			return nil
		},
	}
}

func execCommand(o *cluster.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "exec -- COMMAND",
		Short: "Run a command in the node's namespaces",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := cluster.Find(*o)
			if err != nil {
				return err
			}
			command := c.Command(cmd.Context(), args...)
			return become(command.Path, command.Args, command.Env)
		},
	}
}

func loadImageCommand(o *cluster.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "load-image FILE",
		Short: "Import the images of an OCI archive into the node",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := cluster.Find(*o)
			if err != nil {
				return err
			}
			return c.LoadImage(cmd.Context(), args[0])
		},
	}
}

// become replaces this process, so that the program itself gets terminals, signals and exit codes.
func become(path string, argv, env []string) error {
	path, err := exec.LookPath(path)
	if err != nil {
		return err
	}
	return fmt.Errorf("execute %s: %w", path, syscall.Exec(path, argv, env))
}
