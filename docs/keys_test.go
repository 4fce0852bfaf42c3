// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestEachKeyHasATest checks that the table of tests has one row for each key of config.toml, and that
// the named tests exist.
func TestEachKeyHasATest(t *testing.T) {
	keys := map[string]bool{}
	for _, found := range regexp.MustCompile("(?m)^- \\*\\*`([^`]+)`\\*\\*").FindAllStringSubmatch(prose(t, "reference/configuration-keys.md"), -1) {
		keys[found[1]] = true
	}
	if len(keys) < 80 {
		t.Fatalf("found only %d keys", len(keys))
	}
	row := regexp.MustCompile("^\\| `([^`]+)` \\| \\[`(Test\\w+)`\\]\\(([^)]+)\\) \\|$")
	for _, line := range rows(t, prose(t, "reference/configuration-tests.md"), "| key | test |\n") {
		cells := row.FindStringSubmatch(strings.TrimSpace(line))
		if cells == nil {
			t.Errorf("the row %q names no key and test", line)
			continue
		}
		if !keys[cells[1]] {
			t.Errorf("%s is no key, or has two rows", cells[1])
		}
		delete(keys, cells[1])
		source, err := os.ReadFile(filepath.Join("reference", cells[3]))
		if err != nil || !strings.Contains(string(source), "\nfunc "+cells[2]+"(t *testing.T) {") {
			t.Errorf("%s: %s has no test %s: %v", cells[1], cells[3], cells[2], err)
		}
	}
	for key := range keys {
		t.Errorf("reference/configuration-tests.md has no row for %s", key)
	}
}
