// Package docs has no code: its test keeps what the documents say about tests true.
package docs

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Each bound in security.md names the test that proves it, and where it is.
func TestSecurityNamesTestsThatExist(t *testing.T) {
	text, err := os.ReadFile("security.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("\\[`(Test\\w+)`\\]\\(([^)]+)\\)").FindAllStringSubmatch(string(text), -1)
	if len(named) == 0 {
		t.Fatal("it names none")
	}
	for _, one := range named {
		source, err := os.ReadFile(one[2])
		if err != nil || !strings.Contains(string(source), "func "+one[1]+"(") {
			t.Errorf("%s is not in %s: %v", one[1], one[2], err)
		}
	}
	_, bounds, _ := strings.Cut(string(text), "## Bounds\n")
	bounds, _, _ = strings.Cut(bounds, "\n## ")
	for line := range strings.Lines(bounds) {
		if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| a tenant pushes") && !strings.Contains(line, "_test.go)") {
			t.Errorf("this bound names no test: %s", line)
		}
	}
}
