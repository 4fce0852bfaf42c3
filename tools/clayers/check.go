// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// check returns the violations of a rules file by the sources in the same directory. Without object
// files, check covers only includes.
func check(root, file string) ([]string, error) {
	r, err := readRules(filepath.Join(root, file))
	if err != nil {
		return nil, err
	}
	r.file = file
	t, err := load(root, r)
	if err != nil {
		return nil, err
	}
	problems := r.unknown(t)
	missing, err := t.readAll(root, r)
	if err != nil {
		return nil, err
	}
	problems = append(problems, missing...)
	problems = append(problems, r.drop(t)...)
	problems = append(problems, r.breaches(t)...)
	problems = append(problems, t.circles()...)
	return append(problems, r.strangers(t)...), nil
}

// readAll reads the objects of all directories. Each compiled unit must have an object.
func (t tree) readAll(root string, r rules) ([]string, error) {
	if len(r.objects) == 0 {
		return nil, nil
	}
	all := map[string]bool{}
	for _, dir := range r.objects {
		has, err := t.readObjects(filepath.Join(root, dir))
		if err != nil {
			return nil, err
		}
		for name := range has {
			all[name] = true
		}
	}
	var problems []string
	for _, name := range t.names() {
		if t[name].isCompiled() && !all[name] {
			problems = append(problems, fmt.Sprintf("%s has no object: run make build", name))
		}
	}
	return problems, nil
}

// unknown returns the names in the rules that are neither folders nor units, and the folders that
// no order names.
func (r rules) unknown(t tree) []string {
	var problems []string
	exists := func(name string) bool {
		return slices.ContainsFunc(t.names(), func(unit string) bool { return names(name, unit) })
	}
	ordered := map[string]bool{}
	for _, o := range r.orders {
		for _, step := range o.steps {
			for _, name := range step {
				if !exists(name) {
					problems = append(problems, fmt.Sprintf("line %d: there is no %s", o.line, name))
				}
				ordered[name] = true
			}
		}
	}
	for _, p := range r.prefixes {
		if !slices.ContainsFunc(t.names(), func(unit string) bool { ok, _ := path.Match(p.units, unit); return ok }) {
			problems = append(problems, fmt.Sprintf("line %d: there is no %s", p.line, p.units))
		}
	}
	var folders []string
	for _, name := range t.names() {
		if folder := path.Dir(name); !ordered[folder] && !slices.Contains(folders, folder) {
			folders = append(folders, folder)
			problems = append(problems, fmt.Sprintf("no order names the folder %s", folder))
		}
	}
	return problems
}

// drop removes the needs that exceptions allow, and returns the unused exceptions.
func (r rules) drop(t tree) []string {
	var problems []string
	for _, e := range r.excepts {
		if t[e.from] == nil || t[e.from].needs[e.to] == nil {
			problems = append(problems, fmt.Sprintf("line %d: %s does not need %s", e.line, e.from, e.to))
			continue
		}
		delete(t[e.from].needs, e.to)
	}
	return problems
}

// breaches returns the needs of units for units above them.
func (r rules) breaches(t tree) []string {
	var problems []string
	for _, name := range t.names() {
		for _, other := range sorted(t[name].needs) {
			for _, o := range r.orders {
				low, high := o.level(name), o.level(other)
				if low >= 0 && low < high {
					problems = append(problems, fmt.Sprintf("%s needs %s, which is above it (line %d): %s",
						name, other, o.line, reasons(t[name].needs[other])))
				}
			}
		}
	}
	return problems
}

// circles returns a shortest cycle through each unit that indirectly needs itself. circles returns
// each cycle once.
func (t tree) circles() []string {
	var problems []string
	told := map[string]bool{}
	for _, name := range t.names() {
		circle := t.circle(name)
		if circle == nil || slices.ContainsFunc(circle, func(unit string) bool { return told[unit] }) {
			continue
		}
		var text strings.Builder
		for i, unit := range circle {
			told[unit] = true
			next := circle[(i+1)%len(circle)]
			fmt.Fprintf(&text, " %s → %s (%s)", unit, next, reasons(t[unit].needs[next]))
		}
		problems = append(problems, "circle:"+text.String())
	}
	return problems
}

// circle returns the units of a shortest cycle through a unit, or nil.
func (t tree) circle(start string) []string {
	before := map[string]string{}
	for queue := []string{start}; len(queue) > 0; queue = queue[1:] {
		for _, next := range sorted(t[queue[0]].needs) {
			if next == start {
				var circle []string
				for unit := queue[0]; unit != start; unit = before[unit] {
					circle = append(circle, unit)
				}
				circle = append(circle, start)
				slices.Reverse(circle)
				return circle
			}
			if _, seen := before[next]; !seen {
				before[next] = queue[0]
				queue = append(queue, next)
			}
		}
	}
	return nil
}

// strangers returns the functions whose names do not begin with the name of their file. In
// NAME.c the valid names are vg_NAME, vg_NAME_…, and vg_NAMEs_… for functions of several
// objects.
func (r rules) strangers(t tree) []string {
	if r.prefix == "" {
		return nil
	}
	var problems []string
	for _, name := range t.names() {
		own := r.prefix + path.Base(name)
		others := r.prefixesOf(name)
		for _, function := range t[name].functions {
			if function == own || strings.HasPrefix(function, own+"_") || strings.HasPrefix(function, own+"s_") ||
				slices.ContainsFunc(others, func(p string) bool { return strings.HasPrefix(function, p) }) {
				continue
			}
			problems = append(problems, fmt.Sprintf("%s of %s does not begin with %s_", function, name, own))
		}
	}
	return problems
}

func sorted(needs map[string][]string) []string {
	var all []string
	for name := range needs {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// reasons joins the first few reasons.
func reasons(all []string) string {
	const most = 3
	if len(all) > most {
		return strings.Join(all[:most], ", ") + fmt.Sprintf(" and %d more", len(all)-most)
	}
	return strings.Join(all, ", ")
}
