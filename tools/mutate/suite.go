// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"path/filepath"
	"strings"
)

// A verdict is the result of the tests for a mutant.
type verdict int

const (
	void     verdict = iota // the mutant does not compile, or compiles to the same code, and does not count
	killed                  // a test fails
	survived                // all tests pass
)

// A suite is a package together with its unit tests.
type suite interface {
	// mutants returns every mutant of the package.
	mutants() ([]mutant, error)
	// prepare runs the tests without any mutant. The tests must pass.
	prepare(ctx context.Context) error
	// try runs the tests on a mutant.
	try(ctx context.Context, m mutant) (verdict, error)
}

// interposerPrefix begins the names of the interposer's parts among the packages.
const interposerPrefix = "interposer/"

// A workshop is the place where mutants are built: the repository and a build directory.
type workshop struct {
	root, dir string
	c         *cBuild
}

func newWorkshop(root string) *workshop {
	dir := filepath.Join(root, "build", "mutate")
	return &workshop{root: root, dir: dir, c: &cBuild{root: root, dir: filepath.Join(dir, "c")}}
}

func (w *workshop) suite(name string) suite {
	if part, ok := strings.CutPrefix(name, interposerPrefix); ok {
		return &cSuite{build: w.c, name: part}
	}
	// Go ignores directories with this prefix, so a mutant is not a package.
	return &goSuite{root: w.root, dir: filepath.Join(w.dir, "_go"), name: name}
}
