package main

import (
	"context"
	"path/filepath"
	"strings"
)

// A verdict is what the tests make of a mutant.
type verdict int

const (
	void     verdict = iota // it does not compile, or to the same code: it does not count
	killed                  // a test fails
	survived                // all tests pass
)

// A suite is a package together with its unit tests.
type suite interface {
	// mutants returns every mutant of the package.
	mutants() ([]mutant, error)
	// prepare runs the tests without any mutant; they must pass.
	prepare(ctx context.Context) error
	// try runs the tests on a mutant.
	try(ctx context.Context, m mutant) (verdict, error)
}

// interposerPrefix begins the names of the interposer's files among the packages.
const interposerPrefix = "interposer/"

// A workshop is where mutants are built: the repository, and a directory for what is built.
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
	// Go programs do not look into directories with such names: a mutant is no package.
	return &goSuite{root: w.root, dir: filepath.Join(w.dir, "_go"), name: name}
}
