package main

import (
	"fmt"
	"strings"
)

// coverage holds the blocks of code that the tests of a package run, or do not.
type coverage map[string][]block

// A block is a stretch of code without branches.
type block struct {
	start, end place
	runs       bool
}

// A place is a line and a column, both from 1.
type place struct{ line, column int }

func (p place) before(q place) bool {
	return p.line < q.line || p.line == q.line && p.column < q.column
}

// parseCoverage reads a profile as go test writes it. Files of the package are named by its
// directory, and files of other packages are left out.
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

// reaches reports whether tests run the code at an offset of a file. What is in no block,
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
