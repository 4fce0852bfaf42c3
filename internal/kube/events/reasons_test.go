// SPDX-License-Identifier: Apache-2.0

package events

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestEveryReasonIsDocumented checks that the documentation explains every reason of an Event.
func TestEveryReasonIsDocumented(t *testing.T) {
	source, err := os.ReadFile("reasons.go")
	if err != nil {
		t.Fatal(err)
	}
	manual, err := os.ReadFile("../../../docs/how-to/debug.md")
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`(?m)^\t(\w+)\s+= Reason\{"(\w+)"`).FindAllStringSubmatch(string(source), -1)
	if len(declared) < 5 {
		t.Fatalf("only %d reasons are found in the source", len(declared))
	}
	for _, d := range declared {
		if d[1] != d[2] {
			t.Errorf("%s is written as %s", d[1], d[2])
		}
		if !strings.Contains(string(manual), "\n| `"+d[2]+"` |") {
			t.Errorf("docs/how-to/debug.md has no advice for %s", d[2])
		}
	}
}
