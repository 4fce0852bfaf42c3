// SPDX-License-Identifier: Apache-2.0

// Command gencheader generates the C header of the pages' layout.
package main

import (
	"fmt"
	"os"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits/internal/layout"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gencheader:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("usage: gencheader FILE")
	}
	text, err := layout.CHeader()
	if err != nil {
		return err
	}
	return os.WriteFile(args[0], []byte(text), 0o644)
}
