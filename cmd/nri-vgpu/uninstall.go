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
		Short: "Remove nri-vgpu from the node, except for files that running containers use",
		Long: `Remove nri-vgpu from the node, except for files that running containers use.
Those containers keep their limits, and no new containers with GPUs start. When the
last of their pods has gone, the guard removes the remaining files and itself.`,
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
	cmd.Flags().StringVar(&root, "root", "", "mount point of the node's root; default: /")
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
		Short:     "Do the cluster's part of helm uninstall, before and after the nodes' part",
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
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "path of a kubeconfig; default: the pod's service account")
	cmd.Flags().StringVar(&o.Namespace, "namespace", "nri-vgpu-system", "namespace of the release")
	cmd.Flags().StringVar(&o.Name, "name", "nri-vgpu", "name of the agent's DaemonSet")
	cmd.Flags().StringVar(&o.Patcher, "patcher", "extended-resource-patcher", "name of the patcher's DaemonSet")
	cmd.Flags().DurationVar(&o.Timeout, "timeout", 5*time.Minute, "time that the nodes have to finish")
	return cmd
}
