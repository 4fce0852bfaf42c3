// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
)

// coverage contains the blocks of code of a package, and whether its tests run them.
type coverage map[string][]block

// A block is a section of code without branches.
type block struct {
	start, end place
	runs       bool
}

// A place is a line and a column, both starting at 1.
type place struct{ line, column int }

func (p place) before(q place) bool {
	return p.line < q.line || p.line == q.line && p.column < q.column
}

// parseCoverage parses a profile of go test. parseCoverage names the package's files by its
// directory, and omits files of other packages.
func parseCoverage(profile, importPath, dir string) (coverage, error) {
	c := coverage{}
	for line := range strings.Lines(profile) {
		if strings.HasPrefix(line, "mode:") {
			continue
		}
		file, at, ok := strings.Cut(line, ":")
		var b block
		var statements, count int
		if _, err := fmt.Sscanf(at, "%d.%d,%d.%d %d %d", &b.start.line, &b.start.column,
			&b.end.line, &b.end.column, &statements, &count); err != nil || !ok {
			return nil, fmt.Errorf("parse coverage %q: %w", line, err)
		}
		b.runs = count > 0
		if base, ok := strings.CutPrefix(file, importPath+"/"); ok {
			c[dir+"/"+base] = append(c[dir+"/"+base], b)
		}
	}
	return c, nil
}

// reaches reports whether tests run the code at an offset of a file. Code outside blocks,
// such as a constant of the package, counts as run.
func (c coverage) reaches(file, text string, offset int) bool {
	before := text[:offset]
	at := place{1 + strings.Count(before, "\n"), offset - strings.LastIndexByte(before, '\n')}
	var inner block
	for _, b := range c[file] {
		inside := !at.before(b.start) && at.before(b.end)
		if inside && (inner == block{} || inner.start.before(b.start)) {
			inner = b
		}
	}
	return inner == block{} || inner.runs
}
