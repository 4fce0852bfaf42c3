// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
)

// rules are the content of a file of rules. Each line has one of these forms:
//
//	order A < B C < D      A does not need B, C and D; B and C do not need D
//	objects DIR            the directory of FOLDER/NAME.o, relative to the repository's root
//	apart FOLDER           a folder without sources of layers
//	include FOLDER         a folder whose files other folders include without the folder's name
//	headers alone          each header is a unit by itself, FOLDER/NAME.h
//	prefix vg_             the prefix of functions, followed by the name of their file
//	prefix UNITS vg_x      an additional prefix of these units' functions
//	except A -> B: why     A may need B, which does not count as a cycle
//
// A, B, C and D are folders or units. UNITS is a unit, in which * matches any characters.
// A comment starts with #.
type rules struct {
	file     string
	orders   []order
	objects  []string
	includes []string
	apart    []string
	alone    bool // headers
	prefix   string
	prefixes []prefix
	excepts  []except
}

// order is a chain of folders or units, the lowest first.
type order struct {
	line  int
	steps [][]string
}

type prefix struct {
	line        int
	units, name string
}

type except struct {
	line     int
	from, to string
}

// unitOf returns the unit of a file FOLDER/NAME.c.
func (r rules) unitOf(file string) string {
	if ext := path.Ext(file); !r.alone || ext != ".h" {
		return strings.TrimSuffix(file, ext)
	}
	return file
}

// readRules reads a file of rules.
func readRules(file string) (rules, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return rules{}, fmt.Errorf("read the rules: %w", err)
	}
	r := rules{file: file}
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := r.add(i+1, line); err != nil {
			return rules{}, fmt.Errorf("%s:%d: %w", file, i+1, err)
		}
	}
	if len(r.orders) == 0 {
		return rules{}, fmt.Errorf("%s has no order", file)
	}
	return r, nil
}

func (r *rules) add(line int, text string) error {
	word, rest, _ := strings.Cut(text, " ")
	words := strings.Fields(rest)
	switch {
	case word == "order" && strings.Contains(rest, "<"):
		o := order{line: line}
		for step := range strings.SplitSeq(rest, "<") {
			o.steps = append(o.steps, strings.Fields(step))
		}
		r.orders = append(r.orders, o)
	case word == "objects" && len(words) == 1:
		r.objects = append(r.objects, words[0])
	case word == "apart" && len(words) == 1:
		r.apart = append(r.apart, words[0])
	case word == "include" && len(words) == 1:
		r.includes = append(r.includes, words[0])
	case text == "headers alone":
		r.alone = true
	case word == "prefix" && len(words) == 1:
		r.prefix = words[0]
	case word == "prefix" && len(words) == 2:
		r.prefixes = append(r.prefixes, prefix{line, words[0], words[1]})
	case word == "except":
		edge, why, _ := strings.Cut(rest, ":")
		from, to, ok := strings.Cut(edge, "->")
		if !ok || strings.TrimSpace(why) == "" {
			return fmt.Errorf("want except A -> B: why, not %q", text)
		}
		r.excepts = append(r.excepts, except{line, strings.TrimSpace(from), strings.TrimSpace(to)})
	default:
		return fmt.Errorf("no rule: %q", text)
	}
	return nil
}

// names reports whether name is a unit or its folder.
func names(name, unit string) bool {
	return name == unit || name == path.Dir(unit)
}

// level returns the step of an order that contains a unit, or -1. A unit that an order names
// explicitly does not have the position of its folder.
func (o order) level(unit string) int {
	own := slices.IndexFunc(o.steps, func(step []string) bool { return slices.Contains(step, unit) })
	if own >= 0 {
		return own
	}
	return slices.IndexFunc(o.steps, func(step []string) bool { return slices.Contains(step, path.Dir(unit)) })
}

// prefixesOf returns the additional prefixes of a unit's functions.
func (r rules) prefixesOf(unit string) []string {
	var all []string
	for _, p := range r.prefixes {
		if ok, _ := path.Match(p.units, unit); ok {
			all = append(all, p.name)
		}
	}
	return all
}
