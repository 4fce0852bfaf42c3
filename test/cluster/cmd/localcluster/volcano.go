// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/nri-vgpu/nri-vgpu/test/cluster"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/volcano"
)

func volcanoCommand(o *cluster.Options) *cobra.Command {
	var v volcano.Options
	cmd := &cobra.Command{
		Use:   "volcano",
		Short: "Install Volcano's scheduler and controllers, which are built the first time",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := cluster.Find(*o)
			if err != nil {
				return err
			}
			wd, err := os.Getwd()
			if err != nil {
				return err
			}
			if v.Root, err = components.FindRoot(wd); err != nil {
				return err
			}
			if v.Built, err = volcano.Build(cmd.Context(), components.Builder{Root: v.Root, Out: os.Stderr}); err != nil {
				return err
			}
			if v.Archives, err = os.MkdirTemp("", "volcano-"); err != nil {
				return err
			}
			defer os.RemoveAll(v.Archives)
			return volcano.Install(cmd.Context(), c, v)
		},
	}
	cmd.Flags().BoolVar(&v.NodeLock, "node-lock", false, "have the scheduler lock nodes (NodeLockEnable)")
	cmd.Flags().BoolVar(&v.Next, "next", false, "run the scheduler of 1.15.1 instead of 1.14.1")
	return cmd
}
