// SPDX-License-Identifier: Apache-2.0

// Package debian installs packages of Debian that tests need.
package debian

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
)

//go:embed install.sh
var script string

// Install installs the packages that are missing. test names the test, and what describes the
// packages and their size to the user.
func Install(test, what string, packages ...string) error {
	command := exec.Command("sh", append([]string{"-c", script, "install.sh", test, what}, packages...)...)
	command.Stdout, command.Stderr = os.Stderr, os.Stderr
	if err := command.Run(); err != nil {
		return fmt.Errorf("install %s: %w", what, err)
	}
	return nil
}
