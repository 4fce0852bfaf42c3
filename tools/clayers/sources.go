// SPDX-License-Identifier: Apache-2.0

package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
)

// unit is NAME.c, NAME.h and NAME.S of a folder, or a single header.
type unit struct {
	name  string // FOLDER/NAME or FOLDER/NAME.h
	files []string
	needs map[string][]string // the reasons for needing other units, by unit
	// functions are the functions of NAME.c with external linkage, as its objects list them.
	functions []string
}

// need records why a unit needs another unit, each reason once.
func (u *unit) need(other, why string) {
	if other != u.name && !slices.Contains(u.needs[other], why) {
		u.needs[other] = append(u.needs[other], why)
	}
}

func (u *unit) isC() bool {
	return slices.ContainsFunc(u.files, func(file string) bool { return path.Ext(file) == ".c" })
}

func (u *unit) isCompiled() bool {
	return slices.ContainsFunc(u.files, func(file string) bool { return path.Ext(file) != ".h" })
}

// tree contains the units of a directory, by name.
type tree map[string]*unit

func (t tree) names() []string {
	var all []string
	for name := range t {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// load reads the sources in the directory of a rules file.
func load(root string, r rules) (tree, error) {
	t := tree{}
	dir := path.Dir(r.file)
	entries, err := os.ReadDir(filepath.Join(root, dir))
	if err != nil {
		return nil, fmt.Errorf("list the folders: %w", err)
	}
	for _, entry := range entries {
		if entry.IsDir() && !slices.Contains(r.apart, entry.Name()) {
			if err := t.addFolder(root, r, entry.Name()); err != nil {
				return nil, err
			}
		}
	}
	for _, name := range t.names() {
		if err := t.readIncludes(root, r, t[name]); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (t tree) addFolder(root string, r rules, folder string) error {
	dir := path.Dir(r.file)
	entries, err := os.ReadDir(filepath.Join(root, dir, folder))
	if err != nil {
		return fmt.Errorf("list the sources: %w", err)
	}
	for _, entry := range entries {
		ext := path.Ext(entry.Name())
		if ext != ".c" && ext != ".h" && ext != ".S" {
			continue
		}
		name := r.unitOf(path.Join(folder, entry.Name()))
		if t[name] == nil {
			t[name] = &unit{name: name, needs: map[string][]string{}}
		}
		t[name].files = append(t[name].files, path.Join(dir, folder, entry.Name()))
	}
	return nil
}

var include = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*include[ \t]+"([^"]+)"`)

// readIncludes records the includes of a unit's files. readIncludes ignores headers that the tree
// does not contain, such as generated headers.
func (t tree) readIncludes(root string, r rules, u *unit) error {
	for _, file := range u.files {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return err
		}
		for _, match := range include.FindAllStringSubmatch(string(text), -1) {
			for _, from := range append([]string{path.Dir(u.name), "."}, r.includes...) {
				header := path.Join(from, match[1])
				if other := r.unitOf(header); t[other] != nil {
					u.need(other, path.Base(file)+" includes "+path.Base(header))
					break
				}
			}
		}
	}
	return nil
}

// readObjects records which units the objects below a directory call. readObjects returns
// the units that have an object there.
func (t tree) readObjects(dir string) (map[string]bool, error) {
	defined := map[string]string{}
	undefined := map[string][]string{}
	for _, name := range t.names() {
		u := t[name]
		if !u.isCompiled() {
			continue
		}
		symbols, err := symbolsOf(filepath.Join(dir, name+".o"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the object of %s: %w", name, err)
		}
		undefined[name] = nil
		for _, s := range symbols {
			if s.Section == elf.SHN_UNDEF {
				undefined[name] = append(undefined[name], s.Name)
				continue
			}
			defined[s.Name] = name
			if elf.ST_TYPE(s.Info) == elf.STT_FUNC && u.isC() && !slices.Contains(u.functions, s.Name) {
				u.functions = append(u.functions, s.Name)
			}
		}
	}
	has := map[string]bool{}
	for name, symbols := range undefined {
		has[name] = true
		for _, symbol := range symbols {
			if other, ok := defined[symbol]; ok {
				t[name].need(other, "uses "+symbol)
			}
		}
	}
	return has, nil
}

// symbolsOf returns the symbols that an object exports or imports.
func symbolsOf(file string) ([]elf.Symbol, error) {
	object, err := elf.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = object.Close() }()
	symbols, err := object.Symbols()
	if errors.Is(err, elf.ErrNoSymbols) {
		return nil, nil
	}
	return slices.DeleteFunc(symbols, func(s elf.Symbol) bool {
		return s.Name == "" || elf.ST_BIND(s.Info) == elf.STB_LOCAL
	}), err
}
