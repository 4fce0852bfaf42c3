// Command render writes what follows from the chart and from the configuration:
// the schema of the chart's values, the one-file manifest, and the reference in
// docs/configuration.md.
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
	helm := flag.Bool("helm", false, "only build helm, and print where it is")
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

// render writes all files: those last that helm makes, which checks the values by
// the schema.
func render(ctx context.Context, root string) error {
	helm, err := components.HelmProgram(ctx, root, os.Stderr)
	if err != nil {
		return err
	}
	for _, file := range files() {
		content, err := file.make(ctx, helm, root)
		if err != nil {
			return fmt.Errorf("%s: %w", file.name, err)
		}
		if err := os.WriteFile(filepath.Join(root, file.name), content, 0o644); err != nil {
			return fmt.Errorf("write it: %w", err)
		}
	}
	return nil
}

// rendered is a file that follows from others.
type rendered struct {
	name string
	make func(ctx context.Context, helm, root string) ([]byte, error)
}

func files() []rendered {
	without := func(make func(root string) ([]byte, error)) func(context.Context, string, string) ([]byte, error) {
		return func(_ context.Context, _, root string) ([]byte, error) { return make(root) }
	}
	return []rendered{
		{schemaFile, without(makeSchema)}, {referenceFile, without(makeReference)},
		{manifestFile, makeManifest}, {uninstallFile, makeUninstall},
	}
}
