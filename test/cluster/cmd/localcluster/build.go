// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
)

func buildCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "build",
		Short: "Build the components of nodes and tests that the cache lacks",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			wd, err := os.Getwd()
			if err != nil {
				return err
			}
			root, err := components.FindRoot(wd)
			if err != nil {
				return err
			}
			builder := components.Builder{Root: root, Out: os.Stderr}
			for _, modules := range [][]components.Module{components.Modules(), components.Volcano(), {components.Prometheus(), components.Helm(), components.DevicePlugin()}} {
				if _, err := builder.Build(cmd.Context(), modules); err != nil {
					return err
				}
			}
			return nil
		},
	}
}
