// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheRepositoryFollowsItsRules(t *testing.T) {
	problems, err := check("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Error(p)
	}
}

// module writes rules and a module with packages that import other packages.
func module(t *testing.T, rules string, packages map[string][]string) string {
	t.Helper()
	root := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module example.com/m\n\ngo 1.26\n")
	write(document, "# Rules\n\n| package | is | must not import |\n|---|---|---|\n"+rules+"\nAnd no row.\n")
	for name, imports := range packages {
		var b strings.Builder
		b.WriteString("package " + filepath.Base(name) + "\n")
		for _, path := range imports {
			if strings.HasPrefix(path, "m/") {
				path = "example.com/" + path
			}
			b.WriteString("\nimport _ \"" + path + "\"\n")
		}
		write(filepath.Join(name, "x.go"), b.String())
	}
	return root
}

func TestCheck(t *testing.T) {
	for name, tt := range map[string]struct {
		rules    string
		packages map[string][]string
		want     string // part of the only problem; empty without a problem
	}{
		"nothing forbidden": {"| `pkg/a` | a | |", map[string][]string{"pkg/a": {"os"}}, ""},
		"nothing broken":    {"| `pkg/a` | a | NRI, `internal/b` |\n| `internal/b` | b | |", map[string][]string{"pkg/a": {"os"}, "internal/b": nil}, ""},
		"a package":         {"| `pkg/a` | a | `internal/b` |\n| `internal/b` | b | |", map[string][]string{"pkg/a": {"m/internal/b"}, "internal/b": nil}, "pkg/a → internal/b"},
		"by another": {"| `pkg/a` | a | `internal/b` |\n| `internal/b`, `internal/c` | | |",
			map[string][]string{"pkg/a": {"m/internal/c"}, "internal/c": {"m/internal/b"}, "internal/b": nil}, "pkg/a → internal/c → internal/b"},
		"below a package": {"| `pkg/a` | a | `internal/b` |\n| `internal/b/c` | b | |", map[string][]string{"pkg/a": {"m/internal/b/c"}, "internal/b/c": nil}, "pkg/a → internal/b/c"},
		"beside a package": {"| `pkg/a` | a | `internal/b` |\n| `internal/b`, `internal/bc` | b | |",
			map[string][]string{"pkg/a": {"m/internal/bc"}, "internal/bc": nil, "internal/b": nil}, ""},
		"of all below":     {"| `pkg/...` | a | `internal/b` |\n| `internal/b`, `pkg/a` | b | |", map[string][]string{"pkg/a": {"m/internal/b"}, "internal/b": nil}, "pkg/a → internal/b"},
		"files by another": {"| `pkg/a` | a | files |\n| `internal/b` | b | |", map[string][]string{"pkg/a": {"m/internal/b"}, "internal/b": {"os"}}, ""},
		"not listed":       {"| `pkg/a` | a | |", map[string][]string{"pkg/a": nil, "internal/b": nil}, "no row for internal/b"},
		"not there":        {"| `pkg/a`, `pkg/b` | a | |", map[string][]string{"pkg/a": nil}, "no package pkg/b"},
		"cannot fail":      {"| `pkg/a` | a | `internal/b` |", map[string][]string{"pkg/a": nil}, "no package `internal/b`"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			problems, err := check(module(t, tt.rules, tt.packages))
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(problems, "\n")
			if tt.want == "" && got != "" || !strings.Contains(got, tt.want) || len(problems) > 1 {
				t.Errorf("got %q, want %q", problems, tt.want)
			}
		})
	}
}

// TestWords checks that each word of the rules forbids an import.
func TestWords(t *testing.T) {
	planted := map[string]string{
		"Kubernetes": "k8s.io/api/core/v1", "the API server": "k8s.io/client-go/kubernetes", "NRI": "github.com/containerd/nri/pkg/api",
		"NVML": "github.com/NVIDIA/go-nvml/pkg/nvml", "cgo": "C", "files": "os", "sockets": "net",
	}
	for _, word := range words {
		t.Run(word.name, func(t *testing.T) {
			t.Parallel()
			problems, err := check(module(t, "| `pkg/a` | a | "+word.name+" |", map[string][]string{"pkg/a": {planted[word.name]}}))
			if err != nil || len(problems) != 1 || !strings.Contains(problems[0], "pkg/a → "+planted[word.name]) {
				t.Errorf("got %q, %v", problems, err)
			}
		})
	}
}

func TestRulesThatAreNone(t *testing.T) {
	for name, rules := range map[string]string{
		"another word": "| `pkg/a` | a | cats |",
		"no package":   "| pkg/a | a | NRI |",
		"no table":     "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if problems, err := check(module(t, rules, map[string][]string{"pkg/a": nil})); err == nil {
				t.Errorf("got %q", problems)
			}
		})
	}
}
