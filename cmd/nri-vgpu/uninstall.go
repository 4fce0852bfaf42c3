// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"github.com/nri-vgpu/nri-vgpu/internal/daemon"
	"github.com/nri-vgpu/nri-vgpu/internal/uninstall"
	"github.com/nri-vgpu/nri-vgpu/internal/uninstall/cluster"
)

func uninstallCommand(f *flags) *cobra.Command {
	var root string
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove from the node what was installed, but for what containers use that run",
		Long: `Remove from the node what was installed, but for what containers use that run.
Of these the guard keeps watch: they keep their limits, start no more, and when
the last of their pods has gone it removes what is left, and itself.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := daemon.Config(f.config)
			if err != nil {
				return err
			}
			return uninstall.Node(cmd.Context(), uninstall.Options{
				Config: cfg, Root: root, Out: cmd.OutOrStdout(), Err: cmd.ErrOrStderr(),
			})
		},
	}
	cmd.Flags().StringVar(&root, "root", "", "where the node's root is; the own by default")
	cmd.AddCommand(releaseCommand(), idleCommand())
	return cmd
}

// idleCommand returns a command that does nothing. The command keeps a DaemonSet pod
// Ready after the pod's init containers have cleaned the node.
func idleCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "idle",
		Short:  "Do nothing until a signal ends it",
		Args:   cobra.NoArgs,
		Hidden: true,
		Run:    func(cmd *cobra.Command, _ []string) { <-cmd.Context().Done() },
	}
}

func releaseCommand() *cobra.Command {
	var o cluster.Removal
	var kubeconfig string
	cmd := &cobra.Command{
		Use:       "release [begin|await]",
		Short:     "What helm uninstall does in the cluster, before and after all nodes have run uninstall",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"begin", "await"},
		Hidden:    true,
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := daemon.APIServer(kubeconfig, "nri-vgpu")
			if err != nil {
				return err
			}
			if o.Client, err = kubernetes.NewForConfig(api); err != nil {
				return fmt.Errorf("make a Kubernetes client: %w", err)
			}
			o.Out = cmd.OutOrStdout()
			ctx, cancel := context.WithTimeout(cmd.Context(), o.Timeout)
			defer cancel()
			if args[0] == "begin" {
				return o.Begin(ctx)
			}
			return o.Await(ctx)
		},
	}
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig; without it the pod's service account is used")
	cmd.Flags().StringVar(&o.Namespace, "namespace", "nri-vgpu-system", "where nri-vgpu is installed")
	cmd.Flags().DurationVar(&o.Timeout, "timeout", 5*time.Minute, "how long nodes have")
	return cmd
}
