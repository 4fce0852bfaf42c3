// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// graph contains the imports of each package of the module.
type graph struct {
	module  string
	imports map[string][]string
}

// check returns the violations of the rules by the module in a directory.
func check(root string) ([]string, error) {
	g, err := load(root)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(root, document))
	if err != nil {
		return nil, fmt.Errorf("read the rules: %w", err)
	}
	rules, err := parse(string(text), g.module)
	if err != nil {
		return nil, err
	}
	problems := g.unlisted(rules)
	for _, r := range rules {
		problems = append(problems, g.breaches(r)...)
	}
	return problems, nil
}

// load lists the module's packages and their imports, without their tests.
func load(root string) (graph, error) {
	// With -e, go list also lists imports that it cannot resolve.
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Imports,Module", "./...")
	cmd.Dir = root
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return graph{}, fmt.Errorf("list the packages: %w", err)
	}
	g := graph{imports: map[string][]string{}}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath string
			Imports    []string
			Module     struct{ Path string }
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return g, nil
		} else if err != nil {
			return graph{}, fmt.Errorf("read the list of packages: %w", err)
		}
		g.module, g.imports[p.ImportPath] = p.Module.Path, p.Imports
	}
}

// unlisted returns a problem for each package in pkg and internal that has no row.
func (g graph) unlisted(rules []rule) []string {
	var problems []string
	for _, path := range g.packages() {
		name := g.short(path)
		listed := slices.ContainsFunc(rules, func(r rule) bool { return slices.Contains(r.packages, path) })
		// A package that only its parent may import needs no row.
		private := strings.Contains(strings.TrimPrefix(name, "internal/"), "/internal/")
		if !listed && !private && (within(name, "pkg") || within(name, "internal")) {
			problems = append(problems, fmt.Sprintf("%s has no row for %s", document, name))
		}
	}
	return problems
}

// breaches returns the imports that a rule forbids to its packages. breaches also returns the parts
// of the rule that match no package, because no import could violate these parts.
func (g graph) breaches(r rule) []string {
	var problems []string
	say := func(format string, args ...any) {
		problems = append(problems, fmt.Sprintf("%s:%d: ", document, r.line)+fmt.Sprintf(format, args...))
	}
	for _, pattern := range r.packages {
		concerned := false
		for _, path := range g.packages() {
			if !covers(pattern, path) {
				continue
			}
			concerned = true
			for _, it := range r.nothing {
				if chain := g.chain(path, it); chain != nil {
					say("%s must not import %s, but imports it: %s", g.short(path), it.name, strings.Join(chain, " → "))
				}
			}
		}
		if !concerned {
			say("there is no package %s", g.short(pattern))
		}
	}
	for _, it := range r.nothing {
		if g.unknown(it) {
			say("there is no package %s", it.name)
		}
	}
	return problems
}

// unknown reports whether an item names a missing package of the module.
func (g graph) unknown(it item) bool {
	return within(it.paths[0], g.module) &&
		!slices.ContainsFunc(g.packages(), func(path string) bool { return within(path, it.paths[0]) })
}

// chain returns the chain of imports from a package to an item, or nil. Packages below from count
// as part of from.
func (g graph) chain(from string, it item) []string {
	seen := map[string]bool{from: true}
	var walk func(path string) []string
	walk = func(path string) []string {
		for _, next := range g.imports[path] {
			if slices.ContainsFunc(it.paths, func(p string) bool { return within(next, p) }) {
				return []string{g.short(next)}
			}
			if _, own := g.imports[next]; !own || seen[next] || it.direct {
				continue
			}
			seen[next] = true
			if rest := walk(next); rest != nil {
				return append([]string{g.short(next)}, rest...)
			}
		}
		return nil
	}
	if found := walk(from); found != nil {
		return append([]string{g.short(from)}, found...)
	}
	return nil
}

func (g graph) packages() []string {
	var all []string
	for path := range g.imports {
		all = append(all, path)
	}
	slices.Sort(all)
	return all
}

// short returns a path without the path of the module.
func (g graph) short(path string) string { return strings.TrimPrefix(path, g.module+"/") }
