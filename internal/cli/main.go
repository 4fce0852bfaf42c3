// SPDX-License-Identifier: Apache-2.0

// Package cli contains the commands of vgpuctl, of kubectl's plugin, and of mgctl, which
// MetaGPU's users run. kubectl's plugin works on every system. vgpuctl works only on Linux.
package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
)

// Main runs the program with its name and arguments, and returns the exit status.
func Main(args []string) int {
	root := vgpuctl()
	rest := args[1:]
	switch name := programName(args[0]); {
	case show.IsMgctl(name):
		root = mgctl()
	case name == plugin:
		root = kubectlVgpu()
	case name == completer:
		root = kubectlVgpu()
		rest = append([]string{cobra.ShellCompRequestCmd}, rest...)
	}
	root.SetArgs(rest)
	err := root.Execute()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", root.DisplayName(), err)
	}
	return exitStatusOf(err)
}

// Commands returns the root commands of all programs.
func Commands() []*cobra.Command { return []*cobra.Command{vgpuctl(), kubectlVgpu(), mgctl()} }

// programName returns the name of a program, without the suffix of Windows.
func programName(path string) string { return strings.TrimSuffix(filepath.Base(path), ".exe") }

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run:   func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), version.Version) },
	}
}
