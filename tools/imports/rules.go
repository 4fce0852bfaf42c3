// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// rule is a row of a table.
type rule struct {
	line     int
	packages []string
	nothing  []item
}

// item is a forbidden import.
type item struct {
	name string
	// paths are import paths. Each path includes the paths below it.
	paths []string
	// direct reports whether only a package's own imports count. Nearly every package indirectly
	// imports a package that uses files.
	direct bool
}

// words are the words that the last column may contain in addition to packages.
var words = []item{
	{name: "Kubernetes", paths: []string{"k8s.io"}},
	{name: "the API server", paths: []string{"k8s.io/client-go"}},
	{name: "NRI", paths: []string{"github.com/containerd/nri"}},
	{name: "NVML", paths: []string{"github.com/NVIDIA/go-nvml"}},
	{name: "cgo", paths: []string{"C"}},
	{name: "files", paths: []string{"os", "io/fs"}, direct: true},
	{name: "sockets", paths: []string{"net"}, direct: true},
}

// column is the heading of the forbidden imports.
const column = "must not import"

var quoted = regexp.MustCompile("^`([^`]+)`$")

// parse returns the rules of a document. parse converts names of packages to import paths
// of a module.
func parse(text, module string) ([]rule, error) {
	var rules []rule
	inside := false
	for i, line := range strings.Split(text, "\n") {
		cells := cellsOf(line)
		switch {
		case len(cells) == 0:
			inside = false
		case cells[len(cells)-1] == column:
			inside = true
		case inside && !strings.HasPrefix(cells[0], "-"):
			r, err := parseRow(cells, module)
			if err != nil {
				return nil, fmt.Errorf("%s:%d: %w", document, i+1, err)
			}
			r.line = i + 1
			rules = append(rules, r)
		}
	}
	if len(rules) == 0 {
		return nil, fmt.Errorf("%s has no table with a last column %q", document, column)
	}
	return rules, nil
}

// cellsOf returns the cells of a table's row, or nil if the line is not a row.
func cellsOf(line string) []string {
	line, isRow := strings.CutPrefix(strings.TrimSpace(line), "|")
	if !isRow {
		return nil
	}
	cells := strings.Split(strings.TrimSuffix(line, "|"), "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	return cells
}

func parseRow(cells []string, module string) (rule, error) {
	var r rule
	for name := range strings.SplitSeq(cells[0], ", ") {
		found := quoted.FindStringSubmatch(name)
		if found == nil {
			return rule{}, fmt.Errorf("%q is no package in backquotes", name)
		}
		r.packages = append(r.packages, module+"/"+found[1])
	}
	last := cells[len(cells)-1]
	if last == "" {
		return r, nil
	}
	for name := range strings.SplitSeq(last, ", ") {
		if found := quoted.FindStringSubmatch(name); found != nil {
			r.nothing = append(r.nothing, item{name: name, paths: []string{module + "/" + found[1]}})
			continue
		}
		k := slices.IndexFunc(words, func(w item) bool { return w.name == name })
		if k < 0 {
			return rule{}, fmt.Errorf("%q is neither a package in backquotes nor a word that tools/imports/rules.go has", name)
		}
		r.nothing = append(r.nothing, words[k])
	}
	return r, nil
}

// covers reports whether a pattern of the first column matches a package.
func covers(pattern, path string) bool {
	if above, all := strings.CutSuffix(pattern, "/..."); all {
		return within(path, above)
	}
	return path == pattern
}

// within reports whether path equals above or is below it.
func within(path, above string) bool {
	return path == above || strings.HasPrefix(path, above+"/")
}
