// SPDX-License-Identifier: Apache-2.0

// Command render generates files from the chart and the configuration. These files are the
// schema of the chart's values, the chart's README, the one-file manifest, and the reference
// in docs/reference/configuration-keys.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
)

func main() {
	helm := flag.Bool("helm", false, "only build helm, and print the path of helm")
	flag.Parse()
	wd, err := os.Getwd()
	if err == nil {
		wd, err = components.FindRoot(wd)
	}
	if err == nil && *helm {
		err = printHelm(wd)
	} else if err == nil {
		err = render(context.Background(), wd)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

func printHelm(root string) error {
	helm, err := components.HelmProgram(context.Background(), root, os.Stderr)
	if err == nil {
		fmt.Println(helm)
	}
	return err
}

// render writes all files. The files that helm renders are last, because helm
// checks the values against the schema.
func render(ctx context.Context, root string) error {
	helm, err := components.HelmProgram(ctx, root, os.Stderr)
	if err != nil {
		return err
	}
	for _, file := range files() {
		content, err := file.make(ctx, helm, root)
		if err != nil {
			return fmt.Errorf("generate %s: %w", file.name, err)
		}
		if err := os.WriteFile(filepath.Join(root, file.name), content, 0o644); err != nil {
			return fmt.Errorf("write a generated file: %w", err)
		}
	}
	return nil
}

// rendered is a generated file.
type rendered struct {
	name string
	make func(ctx context.Context, helm, root string) ([]byte, error)
}

func files() []rendered {
	without := func(make func(root string) ([]byte, error)) func(context.Context, string, string) ([]byte, error) {
		return func(_ context.Context, _, root string) ([]byte, error) { return make(root) }
	}
	return []rendered{
		{schemaFile, without(makeSchema)}, {referenceFile, without(makeReference)}, {readmeFile, without(makeReadme)},
		{manifestFile, makeManifest}, {uninstallFile, makeUninstall},
	}
}
