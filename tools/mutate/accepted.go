// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
)

// accepted maps the keys of mutants that may survive to the reasons.
type accepted map[string]string

// parseAccepted parses the list of accepted survivors. The list contains lines with
// keys, each followed by the indented reason. Lines that begin with # are comments.
func parseAccepted(text string) (accepted, error) {
	a := accepted{}
	key := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		reason := strings.TrimLeft(line, " ")
		switch {
		case line == "" || line[0] == '#':
		case reason == line:
			if key != "" && a[key] == "" {
				return nil, fmt.Errorf("mutant %q has no reason", key)
			}
			if _, twice := a[line]; twice {
				return nil, fmt.Errorf("accepted twice: %q", line)
			}
			key, a[line] = line, ""
		case key == "":
			return nil, fmt.Errorf("a reason is under no mutant: %q", reason)
		default:
			a[key] = strings.TrimSpace(a[key] + " " + reason)
		}
	}
	if key != "" && a[key] == "" {
		return nil, fmt.Errorf("mutant %q has no reason", key)
	}
	return a, nil
}
