// SPDX-License-Identifier: Apache-2.0

// Package cli contains the commands of vgpuctl, of kubectl's plugin, and of mgctl, which
// MetaGPU's users run. kubectl's plugin works on every system. vgpuctl works only on Linux.
package cli

import (
	"fmt"
	"io"
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
	return execute(root, os.Stderr)
}

// execute runs a command, and returns the exit status. After an error in the command line, execute
// names the command that prints the help.
func execute(root *cobra.Command, errs io.Writer) int {
	valid := false
	root.PersistentPreRun = func(*cobra.Command, []string) { valid = true }
	cmd, err := root.ExecuteC()
	switch {
	case err != nil && !valid:
		// cobra's errors may have several lines.
		fmt.Fprintf(errs, "%s: %s: run '%s --help'\n", root.DisplayName(), strings.Join(strings.Fields(err.Error()), " "), cmd.CommandPath())
	case err != nil:
		fmt.Fprintf(errs, "%s: %v\n", root.DisplayName(), err)
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
