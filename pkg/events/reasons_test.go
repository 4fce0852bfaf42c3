package events

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Who reads a reason in an Event finds in the documentation what to do.
func TestEveryReasonIsDocumented(t *testing.T) {
	source, err := os.ReadFile("reasons.go")
	if err != nil {
		t.Fatal(err)
	}
	manual, err := os.ReadFile("../../docs/operations.md")
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
			t.Errorf("docs/operations.md does not say what to do for %s", d[2])
		}
	}
}
