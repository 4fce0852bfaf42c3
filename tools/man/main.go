// SPDX-License-Identifier: Apache-2.0

// Command man writes the manual pages and shell completions of vgpuctl, kubectl's plugin and mgctl.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/nri-vgpu/nri-vgpu/internal/cli"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	// cobra adds the flags of pflag.CommandLine to each command.
	flags := pflag.NewFlagSet("man", pflag.ContinueOnError)
	output := flags.String("output", "build", "directory in which to write man/ and completions/")
	date := flags.Int64("date", 0, "date of the pages, in seconds since 1970")
	if err := flags.Parse(args); err != nil {
		return err
	}
	return generate(*output, time.Unix(*date, 0).UTC())
}

// generate writes pages with this date, so that equal sources have equal pages.
func generate(output string, date time.Time) error {
	for _, root := range cli.Commands() {
		if err := errors.Join(pages(root, filepath.Join(output, "man"), date), completions(root, filepath.Join(output, "completions"))); err != nil {
			return fmt.Errorf("describe %s: %w", root.Name(), err)
		}
	}
	return nil
}

// pages writes a page for each command of a program.
func pages(root *cobra.Command, dir string, date time.Time) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	header := doc.GenManHeader{Section: "1", Source: "nri-vgpu " + version.Version, Manual: "nri-vgpu", Date: &date}
	root.DisableAutoGenTag = true
	return doc.GenManTreeFromOpts(root, doc.GenManTreeOptions{Header: &header, Path: dir, CommandSeparator: "-"})
}

// completions writes the completions of a program. kubectl completes its plugin by
// kubectl_complete-vgpu, and needs no file.
func completions(root *cobra.Command, dir string) error {
	if root.Name() == "kubectl-vgpu" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for shell, write := range map[string]func(io.Writer) error{
		"bash": func(w io.Writer) error { return root.GenBashCompletionV2(w, true) },
		"zsh":  root.GenZshCompletion,
		"fish": func(w io.Writer) error { return root.GenFishCompletion(w, true) },
	} {
		file, err := os.Create(filepath.Join(dir, root.Name()+"."+shell))
		if err != nil {
			return err
		}
		if err := errors.Join(write(file), file.Close()); err != nil {
			return err
		}
	}
	return nil
}
