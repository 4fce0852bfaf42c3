// SPDX-License-Identifier: Apache-2.0

// Command clayers checks that C files include and call only files below them.
//
// The files NAME.c, NAME.h and NAME.S are one unit, FOLDER/NAME. Unit A needs unit B if A includes
// the header of B. Unit A also needs unit B if B defines an undefined symbol of A's object file.
// Units must not need each other in a cycle, and must not need units above them in the rules. The
// names of functions with external linkage begin with the name of their file.
//
// Each argument is a rules file (see rules.go) beside the folders of the sources. The command runs
// at the root of the repository, after a build, because the command reads object files.
package main

import (
	"fmt"
	"os"
)

func main() {
	failed := false
	for _, path := range os.Args[1:] {
		problems, err := check(".", path)
		if err != nil {
			fmt.Fprintln(os.Stderr, "clayers:", err)
			os.Exit(2)
		}
		for _, p := range problems {
			fmt.Fprintf(os.Stderr, "%s: %s\n", path, p)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}
