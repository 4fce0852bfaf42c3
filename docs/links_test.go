// SPDX-License-Identifier: Apache-2.0

// Package docs has no code: its tests compare the documents with tests and files.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestSecurityNamesTestsThatExist checks that each closed threat and each bound on tenants names the
// tests that prove it, and the files that define these tests.
func TestSecurityNamesTestsThatExist(t *testing.T) {
	threats, bounds := namingTests(t, "explanation/security.md"), namingTests(t, "reference/bounds.md")
	for _, threat := range rows(t, threats, "| a pod | then | closed by | test |\n") {
		// A cell may not contain "|".
		cells := strings.Split(threat, "|")
		if ours := strings.HasPrefix(cells[3], " nri-vgpu"); ours && !strings.Contains(cells[4], "`](") || len(cells) != 6 {
			t.Errorf("this threat names no test: %s", threat)
		}
	}
	for _, bound := range rows(t, bounds, "| quantity | bound | beyond the bound | test |\n") {
		if !strings.Contains(bound, "_test.go)") {
			t.Errorf("this bound names no test: %s", bound)
		}
	}
}

// namingTests returns a document that names tests, each with the file that defines it.
func namingTests(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("\\[`([Tt]est\\w+)`\\]\\(([^)]+)\\)").FindAllStringSubmatch(string(text), -1)
	if len(named) == 0 {
		t.Fatalf("%s names no test", path)
	}
	for _, one := range named {
		source, err := os.ReadFile(filepath.Join(filepath.Dir(path), one[2]))
		if err != nil || !defines(string(source), one[1]) {
			t.Errorf("%s is not in %s: %v", one[1], one[2], err)
		}
	}
	return string(text)
}

// defines reports whether a source has a test in Go or in the shell.
func defines(source, test string) bool {
	return strings.Contains(source, "\nfunc "+test+"(") || strings.Contains(source, "\n"+test+"() {")
}

// rows returns the rows of the table with a head.
func rows(t *testing.T, text, head string) []string {
	t.Helper()
	_, table, found := strings.Cut(text, head)
	table, _, _ = strings.Cut(table, "\n\n")
	all := strings.Split(table, "\n")
	if !found || len(all) < 3 {
		t.Fatalf("there is no table %q", head)
	}
	return all[1:]
}

// link matches a link to a file of the repository, and to a heading of the file.
var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

func TestLinksLeadToFilesAndHeadings(t *testing.T) {
	for _, path := range documents(t) {
		for _, found := range link.FindAllStringSubmatch(prose(t, path), -1) {
			target, heading, _ := strings.Cut(found[1], "#")
			if strings.Contains(found[1], "://") || strings.HasPrefix(found[1], "mailto:") {
				continue
			}
			file := path
			if target != "" {
				file = filepath.Join(filepath.Dir(path), target)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s links to %s, which does not exist", path, found[1])
			} else if heading != "" && !slices.Contains(headings(t, file), heading) {
				t.Errorf("%s links to %s, and %s has no such heading", path, found[1], file)
			}
		}
	}
}

// mostLines bounds the length of a document.
const mostLines = 300

func TestDocumentsAreShortAndInTheIndex(t *testing.T) {
	const index = "../docs/README.md"
	for _, path := range documents(t) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		// The changelog grows with each release.
		if n := strings.Count(string(text), "\n"); n > mostLines && path != "../CHANGELOG.md" {
			t.Errorf("%s has %d lines; allowed: %d", path, n, mostLines)
		}
		if !strings.HasPrefix(path, "../docs/") || path == index {
			continue
		}
		if !strings.Contains(prose(t, index), "]("+strings.TrimPrefix(path, "../docs/")+") |") {
			t.Errorf("%s does not list %s", index, path)
		}
	}
}

// documents returns the Markdown files of the repository.
func documents(t *testing.T) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (path == "../build" || path != ".." && strings.HasPrefix(entry.Name(), ".")):
			return filepath.SkipDir
		case filepath.Ext(path) == ".md":
			all = append(all, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// prose returns a document without its code blocks.
func prose(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile("(?ms)^ *```.*?^ *```$").ReplaceAllString(string(text), "")
}

// headings returns the anchors of a document's headings, as GitHub derives them.
func headings(t *testing.T, path string) []string {
	t.Helper()
	var names []string
	for _, found := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(prose(t, path), -1) {
		name := regexp.MustCompile(`[^\pL\pN_ -]`).ReplaceAllString(strings.ToLower(found[1]), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}

// TestNumbersOfTests checks that the number of tests is at least as testing.md states, and that the
// stated numbers are not stale.
func TestNumbersOfTests(t *testing.T) {
	text := prose(t, "explanation/testing.md")
	quoted := regexp.MustCompile("`([^`]+)`")
	for _, row := range rows(t, text, "| tests | files | in | at least | run by |\n") {
		cells := strings.Split(row, "|")
		least, err := strconv.Atoi(strings.TrimSpace(cells[4]))
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, directory := range quoted.FindAllStringSubmatch(cells[3], -1) {
			n += testsIn(t, filepath.Join("..", directory[1]), quoted.FindStringSubmatch(cells[2])[1])
		}
		if n < least || n > least*5/4 {
			t.Errorf("there are %d: %s", n, row)
		}
	}
}

// testsIn returns the number of tests in the files below a directory whose names match a pattern. A
// file in C counts as one test.
func testsIn(t *testing.T, directory, pattern string) int {
	t.Helper()
	test := map[string]*regexp.Regexp{
		"*_test.go": regexp.MustCompile(`(?m)^func (Test|Fuzz)[A-Z]`),
		"*_test.c":  regexp.MustCompile(`^`),
		"*.sh":      regexp.MustCompile(`(?m)^test_\w+\(\) \{`),
	}[pattern]
	n := 0
	err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if matched, err := filepath.Match(pattern, entry.Name()); err != nil || !matched {
			return err
		}
		text, err := os.ReadFile(path)
		n += len(test.FindAllIndex(text, -1))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestSecretsOfWorkflows checks that the guide names each secret that the workflows need.
func TestSecretsOfWorkflows(t *testing.T) {
	guide := prose(t, "how-to/release.md")
	workflows, err := filepath.Glob("../.github/workflows/*.yml")
	if err != nil || len(workflows) == 0 {
		t.Fatalf("workflows: %v, %v", workflows, err)
	}
	for _, workflow := range workflows {
		text, err := os.ReadFile(workflow)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(`secrets\.(\w+)`).FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(guide, "`"+found[1]+"`") {
				t.Errorf("how-to/release.md does not name the secret %s of %s", found[1], workflow)
			}
		}
	}
}
