// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestTheRepositoryFollowsItsRules checks includes only. make lint checks calls, after a build.
func TestTheRepositoryFollowsItsRules(t *testing.T) {
	for _, file := range []string{"interposer/src/layers.txt", "gpusim/layers.txt"} {
		r, err := readRules(filepath.Join("../..", file))
		if err != nil {
			t.Fatal(err)
		}
		r.file = file
		sources, err := load("../..", r)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range append(r.unknown(sources), r.breaches(sources)...) {
			t.Errorf("%s: %s", file, p)
		}
	}
}

const low, high = "low/a", "high/b"

// sound is a tree that breaks no rule.
var sound = map[string]string{
	low + ".h":  "int vg_a(void);\n",
	low + ".c":  "#include \"a.h\"\nint vg_a(void) { return 1; }\n",
	high + ".h": "int vg_b_twice(void);\n",
	high + ".c": "#include \"b.h\"\n#include \"low/a.h\"\nint vg_b_twice(void) { return 2 * vg_a(); }\n" +
		"static int apart(void) { return 3; }\nint vg_bs_all(void) { return apart(); }\n",
}

const base = "order low < high\nobjects build\nprefix vg_\n"

// plant writes rules and the files of sound, replaces files by the files of the same name in
// changed, and compiles the sources.
func plant(t *testing.T, rules string, changed map[string]string) string {
	t.Helper()
	root := t.TempDir()
	files := maps.Clone(sound)
	maps.Copy(files, changed)
	files["layers.txt"] = rules
	for name, text := range files {
		if filepath.Ext(name) == ".h" {
			text = "#pragma once\n" + text
		}
		path := filepath.Join(root, "src", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name := range files {
		if unit, isC := strings.CutSuffix(name, ".c"); isC {
			compile(t, root, unit)
		}
	}
	return root
}

func compile(t *testing.T, root, unit string) {
	t.Helper()
	object := filepath.Join(root, "build", unit+".o")
	if err := os.MkdirAll(filepath.Dir(object), 0o755); err != nil {
		t.Fatal(err)
	}
	src := filepath.Join(root, "src")
	cmd := exec.Command("cc", "-O2", "-I"+src, "-I"+filepath.Join(src, "low"), "-c", "-o", object, filepath.Join(src, unit+".c"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("compile %s: %v\n%s", unit, err, out)
	}
}

func TestCheck(t *testing.T) {
	for name, tt := range map[string]struct {
		rules   string
		changed map[string]string
		want    []string // parts of the problems, in order
	}{
		"sound": {base, nil, nil},
		"an include above": {base, map[string]string{low + ".h": "#include \"high/c.h\"\nint vg_a(void);\n", "high/c.h": ""},
			[]string{"low/a needs high/c, which is above it (line 1): a.h includes c.h"}},
		"a call above": {base, map[string]string{low + ".c": "int vg_c(void);\nint vg_a(void) { return vg_c(); }\n", "high/c.c": "int vg_c(void) { return 1; }\n"},
			[]string{"low/a needs high/c, which is above it (line 1): uses vg_c"}},
		"data above": {base, map[string]string{low + ".c": "extern int vg_c;\nint vg_a(void) { return vg_c; }\n", "high/c.c": "int vg_c = 1;\n"},
			[]string{"low/a needs high/c"}},
		"a unit above another of its folder": {base + "order high/c < high/b\n", map[string]string{"high/c.c": "#include \"b.h\"\nint vg_c;\n"},
			[]string{"high/c needs high/b, which is above it (line 4)"}},
		"a unit beside another": {base + "order low < high/b high/c\n", map[string]string{"high/c.c": "#include \"b.h\"\nint vg_c;\n"}, nil},
		"a circle of includes": {base, map[string]string{"high/c.h": "#include \"d.h\"\n", "high/d.h": "#include \"c.h\"\n"},
			[]string{"circle: high/c → high/d (c.h includes d.h) high/d → high/c (d.h includes c.h)"}},
		"a circle of calls": {base, map[string]string{"low/c.c": "#include \"low/a.h\"\nint vg_c(void) { return vg_a(); }\n", low + ".c": "int vg_c(void);\nint vg_a(void) { return vg_c() - 1; }\n"},
			[]string{"circle: low/a → low/c (uses vg_c) low/c → low/a (c.c includes a.h, uses vg_a)"}},
		"a longer circle": {base, map[string]string{"low/c.h": "#include \"d.h\"\n", "low/d.h": "#include \"e.h\"\n", "low/e.h": "#include \"c.h\"\n"},
			[]string{"circle: low/c → low/d (c.h includes d.h) low/d → low/e (d.h includes e.h) low/e → low/c"}},
		"an exception": {base + "except low/a -> high/c: the reason\n",
			map[string]string{low + ".h": "#include \"high/c.h\"\nint vg_a(void);\n", "high/c.h": "#include \"low/a.h\"\n"}, nil},
		"an exception that nothing needs": {base + "except high/b -> low/c: the reason\n", nil,
			[]string{"line 4: high/b does not need low/c"}},
		"another prefix": {base, map[string]string{"high/c.c": "int vg_d(void) { return 1; }\nint vg_cat(void) { return 1; }\n"},
			[]string{"vg_d of high/c does not begin with vg_c_", "vg_cat of high/c"}},
		"a prefix of its own":  {base + "prefix high/c* vg_C\n", map[string]string{"high/cd.c": "int vg_Count(void) { return 1; }\n"}, nil},
		"a prefix for nothing": {base + "prefix high/c* vg_C\n", nil, []string{"line 4: there is no high/c*"}},
		"no prefix":            {"order low < high\nobjects build\n", map[string]string{"high/c.c": "int d(void) { return 1; }\n"}, nil},
		"a folder without a place": {base, map[string]string{"third/c.h": ""},
			[]string{"no order names the folder third"}},
		"no such folder": {base + "order low < third\n", nil, []string{"line 4: there is no third"}},
		"no such unit":   {base + "order low/c < high\n", nil, []string{"line 4: there is no low/c"}},
		"headers alone": {base + "headers alone\n", map[string]string{"high/c.h": "int vg_c(void);\n", "high/c.c": "#include \"c.h\"\nint vg_b_twice(void);\nint vg_c(void) { return vg_b_twice(); }\n",
			high + ".c": "#include \"c.h\"\nint vg_b_twice(void) { return 1; }\n"}, nil},
		"headers alone, in a circle": {base + "headers alone\n", map[string]string{"high/c.h": "#include \"d.h\"\n", "high/d.h": "#include \"c.h\"\n"},
			[]string{"circle: high/c.h → high/d.h (c.h includes d.h) high/d.h → high/c.h (d.h includes c.h)"}},
		"headers alone, one above": {base + "headers alone\n", map[string]string{low + ".h": "#include \"high/c.h\"\nint vg_a(void);\n", "high/c.h": ""},
			[]string{"low/a.h needs high/c.h, which is above it (line 1)"}},
		"other folders": {base + "include low\napart third\n", map[string]string{"third/c.h": "", "high/c.h": "#include \"a.h\"\n", low + ".h": "#include \"high/c.h\"\nint vg_a(void);\n"},
			[]string{"low/a needs high/c", "circle: high/c → low/a (c.h includes a.h) low/a → high/c (a.h includes c.h)"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			problems, err := check(plant(t, tt.rules, tt.changed), "src/layers.txt")
			if err != nil {
				t.Fatal(err)
			}
			if len(problems) != len(tt.want) {
				t.Fatalf("got %d problems, want %d:\n%s", len(problems), len(tt.want), strings.Join(problems, "\n"))
			}
			for i, want := range tt.want {
				if !strings.Contains(problems[i], want) {
					t.Errorf("got %q, want %q", problems[i], want)
				}
			}
		})
	}
}

func TestNotBuilt(t *testing.T) {
	root := plant(t, base, nil)
	if err := os.Remove(filepath.Join(root, "build", high+".o")); err != nil {
		t.Fatal(err)
	}
	problems, err := check(root, "src/layers.txt")
	if err != nil || len(problems) != 1 || !strings.Contains(problems[0], "high/b has no object") {
		t.Errorf("got %q, %v", problems, err)
	}
}

func TestRulesThatAreNone(t *testing.T) {
	for name, rules := range map[string]string{
		"another word":     base + "cats\n",
		"no reason":        base + "except low/a -> high/b\n",
		"no arrow":         base + "except low/a: the reason\n",
		"an order of one":  "order low\n",
		"headers of many":  base + "headers alone together\n",
		"no order":         "prefix vg_\n",
		"two directories":  base + "objects build other\n",
		"a prefix of many": base + "prefix a b c\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if problems, err := check(plant(t, rules, nil), "src/layers.txt"); err == nil {
				t.Errorf("got %q", problems)
			}
		})
	}
}
