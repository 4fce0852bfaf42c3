// SPDX-License-Identifier: Apache-2.0

// Command demo demonstrates nri-vgpu on this machine, with a real Kubernetes node and three pods
// that share the node's GPUs.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"

	"github.com/nri-vgpu/nri-vgpu/test/cluster"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

func main() {
	cluster.Supervise()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "demo",
		Short:         "Share this machine's GPUs, or simulated ones, between pods of a local Kubernetes node",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(
		&cobra.Command{
			Use:   "up",
			Short: "Start the node, install nri-vgpu, run three pods and print their parts",
			Args:  cobra.NoArgs,
			RunE:  func(cmd *cobra.Command, _ []string) error { return up(cmd.Context()) },
		},
		&cobra.Command{
			Use:   "down",
			Short: "Remove the node and all of its files",
			Args:  cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error {
				options, err := demoOptions()
				if err != nil {
					return err
				}
				return testbed.Remove(options)
			},
		},
	)
	return root
}
