// SPDX-License-Identifier: Apache-2.0

// Command imports checks that packages do not import the packages that
// docs/reference/packages.md forbids.
//
// Each table with a column "must not import" is a list of rules. The first column names packages,
// in backquotes: `pkg/gpu` is one package, and `pkg/gpu/...` includes the packages below pkg/gpu.
// The last column names forbidden direct and indirect imports. An entry is a word of the list in
// rules.go, or a package in backquotes, which stands for the package and all packages below. Every
// package in pkg and internal must be in a table.
package main

import (
	"fmt"
	"os"
)

// document contains the rules.
const document = "docs/reference/packages.md"

func main() {
	problems, err := check(".")
	if err != nil {
		fmt.Fprintln(os.Stderr, "imports:", err)
		os.Exit(2)
	}
	for _, p := range problems {
		fmt.Fprintln(os.Stderr, p)
	}
	if len(problems) > 0 {
		os.Exit(1)
	}
}
