// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package cli

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nri-vgpu/nri-vgpu/internal/version"
)

// vgpuctl returns the root command of vgpuctl on other systems than Linux. The command rejects all
// of vgpuctl's commands but version.
func vgpuctl() *cobra.Command {
	root := &cobra.Command{
		Use:     "vgpuctl",
		Version: version.Version,
		Short:   "Print the version; the other commands of vgpuctl need Linux",
		Args:    cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			command := strings.Join(append([]string{"vgpuctl"}, args...), " ")
			return fmt.Errorf("run %q on %s: vgpuctl works only on Linux: run vgpuctl on a node, or kubectl vgpu here", command, runtime.GOOS)
		},
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		SilenceUsage:       true,
		SilenceErrors:      true,
	}
	root.AddCommand(versionCommand())
	return root
}
