// SPDX-License-Identifier: Apache-2.0

// Package documented compares the bounds in docs/reference/bounds.md with the bounds in the code. The
// package also returns the commands of documents, for tests that run the commands.
package documented

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Bound fails the test unless the table of bounds has a row that begins with row and states each of
// these bounds.
func Bound(t testing.TB, row string, bounds ...string) {
	t.Helper()
	for line := range strings.Lines(document(t, "docs/reference/bounds.md")) {
		if !strings.HasPrefix(line, "| "+row) {
			continue
		}
		for _, bound := range bounds {
			if !states(line, bound) {
				t.Errorf("docs/reference/bounds.md does not state %q of %s", bound, row)
			}
		}
		return
	}
	t.Errorf("docs/reference/bounds.md has no bound on %s", row)
}

// states reports whether a row states a bound. "640" and "1,064" do not state "64".
func states(row, bound string) bool {
	for rest := row; ; {
		before, after, found := strings.Cut(rest, bound)
		if !found {
			return false
		}
		if strings.Trim(after[:1], "0123456789") != "" && strings.TrimRight(before, "0123456789,.") == before {
			return true
		}
		rest = after
	}
}

// Commands returns the blocks of shell commands in a section of a document. file is a path in the
// repository.
func Commands(t testing.TB, file, section string) []string {
	t.Helper()
	const begin, end = "```sh\n", "```\n"
	_, text, found := strings.Cut(document(t, file), "\n## "+section+"\n")
	if !found {
		t.Fatalf("%s has no section %q", file, section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	var blocks []string
	for _, rest := range strings.Split(text, begin)[1:] {
		block, _, _ := strings.Cut(rest, end)
		blocks = append(blocks, block)
	}
	return blocks
}

// document returns a document of the repository in which the test runs.
func document(t testing.TB, file string) string {
	t.Helper()
	dir, err := os.Getwd()
	for ; err == nil && dir != "/"; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err == nil {
			return string(text)
		}
	}
	t.Fatalf("%s is in no directory above: %v", file, err)
	return ""
}

// Count formats a number as documents do: 1,024.
func Count(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", Count(n/1000), n%1000)
}

// Bytes formats a number of bytes as documents do: 64 bytes, 16 KiB.
func Bytes(n int) string {
	switch {
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%s KiB", Count(n>>10))
	default:
		return fmt.Sprintf("%s bytes", Count(n))
	}
}

// Time formats a duration as documents do: 100 ms, 0.9 s, 2 minutes.
func Time(d time.Duration) string {
	switch {
	case d > time.Minute && d%time.Minute == 0:
		return fmt.Sprintf("%d minutes", d/time.Minute)
	case d >= time.Second/2:
		return fmt.Sprintf("%g s", d.Seconds())
	default:
		return fmt.Sprintf("%g ms", 1000*d.Seconds())
	}
}
