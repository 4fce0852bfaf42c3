// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// prose returns the sentences of a file's prose.
func prose(t *testing.T, file, source string) []string {
	t.Helper()
	found, err := read(file, source)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, p := range found {
		for _, s := range p.sentences() {
			all = append(all, s.text)
		}
	}
	return all
}

func TestRead(t *testing.T) {
	for name, tt := range map[string]struct {
		file, source string
		want         []string
	}{
		"Go": {"a.go", "// Package p runs.\n//\n// It stops\n// late.\npackage p // a trailing comment\n\n// f\nvar f = \"// no comment\"\n",
			[]string{"Package p runs.", "It stops late.", "a trailing comment", "f"}},
		"Go, an example":    {"a.go", "// P is:\n//\n//\tx := 1\n//\ty := 2\n//\n// Then\n// it ends.\npackage p\n", []string{"P is:", "x := 1", "y := 2", "Then it ends."}},
		"Go, a list":        {"a.go", "// P is\n//   - one\n//     thing\n//   - two\npackage p\n", []string{"P is", "one thing", "two"}},
		"Go, a directive":   {"a.go", "// P embeds.\n//\n//go:build linux\npackage p\n", []string{"P embeds."}},
		"Go, a raw string":  {"a.go", "package p\n\nconst a = `// no comment`\n", nil},
		"Go, a rune":        {"a.go", "package p\n\nconst a = '\"' // a quote\n", []string{"a quote"}},
		"C, a block":        {"a.c", "/*\n * first line\n * second line\n */\nint a; /* short */\n", []string{"first line second line", "short"}},
		"C, lines":          {"a.c", "\t// first line\n\t// second line\n\tint a; // trailing\n\t// next\n", []string{"first line second line", "trailing", "next"}},
		"C, a string":       {"a.c", "char *a = \"/* \\\" // no comment\"; char b = '\"'; // comment\n", []string{"comment"}},
		"assembly":          {"a.S", "\t// saves rax\n\tmovq %rax, (%rsp)\n", []string{"saves rax"}},
		"shell":             {"a.sh", "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n# This script\n# runs.\necho \"a # b\" ${a#b} # prints\n", []string{"This script runs.", "prints"}},
		"a table":           {"a.toml", "# How:\n#   a    one\n#        thing\n#   b    two\n# Then it ends.\na = 1\n", []string{"How:", "a    one thing", "b    two", "Then it ends."}},
		"Markdown":          {"a.md", "# A heading\nfirst\nline\n\nsecond\n- one\n  thing\n- two\n1. three\n", []string{"first line", "second", "one thing", "two", "three"}},
		"Markdown, a table": {"a.md", "| a | b |\n|---|---|\n| c d | e |\n", []string{"a", "b", "---", "---", "c d", "e"}},
		"Markdown, code":    {"a.md", "text\n```sh\n# no prose\n```\nmore `a b` text\n", []string{"text", "more `a b` text"}},
		"Markdown, a break": {"a.md", "**key**  \ntext\n", []string{"**key**", "text"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := prose(t, tt.file, tt.source)
			for i := range got {
				got[i] = strings.TrimSpace(got[i])
			}
			want := slices.Clone(tt.want)
			for i := range want {
				want[i] = strings.Join(strings.Fields(want[i]), " ")
			}
			if !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func TestSentences(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		want []sentence
	}{
		"none":             {"", nil},
		"without an end":   {"one two", []sentence{{1, 2, "one two"}}},
		"two":              {"One two. Three?", []sentence{{1, 2, "One two."}, {1, 1, "Three?"}}},
		"a semicolon":      {"one; two", []sentence{{1, 1, "one;"}, {1, 1, "two"}}},
		"a colon":          {"one: two", []sentence{{1, 2, "one: two"}}},
		"brackets":         {"One (two.) Three", []sentence{{1, 2, "One (two.)"}, {1, 1, "Three"}}},
		"abbreviations":    {"One, e.g. two et al. three", []sentence{{1, 6, "One, e.g. two et al. three"}}},
		"numbers":          {"CUDA 12.2 has 3.5 GiB", []sentence{{1, 5, "CUDA 12.2 has 3.5 GiB"}}},
		"a file's name":    {"read a.go and ./... now", []sentence{{1, 3, "read a.go and ./..."}, {1, 1, "now"}}},
		"signs":            {"a – b → c", []sentence{{1, 3, "a – b → c"}}},
		"backquotes":       {"run `go test ./...` now", []sentence{{1, 3, "run `go test ./...` now"}}},
		"an odd backquote": {"a ` b c", []sentence{{1, 3, "a ` b c"}}},
		"on two lines":     {"One two.\nThree `four\nfive` six.", []sentence{{1, 2, "One two."}, {2, 3, "Three `four five` six."}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p paragraph
			for i, text := range strings.Split(tt.text, "\n") {
				p = append(p, line{i + 1, text})
			}
			if got := p.sentences(); !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.md")
	words := strings.Repeat("word ", longest-2) + "end"
	if err := os.WriteFile(file, []byte("Short.\n\n"+words+".\nA "+words+".\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	long, err := check(file)
	if err != nil || len(long) != 1 || long[0].line != 4 || long[0].words != longest {
		t.Errorf("got %v, %v", long, err)
	}
	if _, err := check(filepath.Join(t.TempDir(), "missing.md")); err == nil {
		t.Error("a missing file is no error")
	}
}
