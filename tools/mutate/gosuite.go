// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

// A goSuite is a Go package. Mutants replace its files in an overlay, so that the tree
// never changes.
type goSuite struct {
	root, dir string // the repository, and the build directory
	name      string // the package's directory in the repository

	listed goPackage
	texts  map[string]string // by file
	// tests are the package's own tests, and the tests of the parent package if the parent imports
	// the package.
	tests []*goTests
}

// goTests are the tests of one package, and the code of the mutants' package that the tests run.
type goTests struct {
	listed  goPackage
	program string
	builds  bool // the tests build programs, which may contain the mutants' package
	covered coverage
	limit   time.Duration
}

// A goPackage is the output of go list for a package.
type goPackage struct {
	Dir, ImportPath           string
	Imports                   []string
	GoFiles, CgoFiles         []string
	TestGoFiles, XTestGoFiles []string
}

// parallel is the number of concurrent tests among the tests that permit it. These tests mostly wait.
const parallel = "-test.parallel=16"

// list returns the output of go list for the package of a directory in the repository.
func (s *goSuite) list(ctx context.Context, name string) (goPackage, error) {
	var p goPackage
	out, err := s.command(ctx, "list", "-json=Dir,ImportPath,Imports,GoFiles,CgoFiles,TestGoFiles,XTestGoFiles", "./"+name).Output()
	if err != nil {
		return p, fmt.Errorf("list package %s: %w", name, withOutput(err))
	}
	return p, json.Unmarshal(out, &p)
}

func (s *goSuite) mutants() (all []mutant, err error) {
	if s.listed, err = s.list(context.Background(), s.name); err != nil {
		return nil, err
	}
	s.texts = map[string]string{}
	for _, base := range slices.Concat(s.listed.GoFiles, s.listed.CgoFiles) {
		file := filepath.ToSlash(filepath.Join(s.name, base))
		text, err := os.ReadFile(filepath.Join(s.root, file))
		if err != nil {
			return nil, err
		}
		s.texts[file] = string(text)
		mutants, err := goMutants(file, string(text))
		if err != nil {
			return nil, err
		}
		all = append(all, mutants...)
	}
	return all, nil
}

func (s *goSuite) prepare(ctx context.Context) error {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	around, err := s.around(ctx)
	if err != nil {
		return err
	}
	for _, p := range append([]goPackage{s.listed}, around...) {
		t := &goTests{listed: p, program: filepath.Join(s.dir, fmt.Sprintf("package%d.test", len(s.tests)))}
		if err := s.prepareTests(ctx, t); err != nil {
			return err
		}
		s.tests = append(s.tests, t)
	}
	return nil
}

// around returns the package in the parent directory of the mutants' package, if the parent package
// imports the mutants' package. The tests of the parent package then run the mutants' package.
func (s *goSuite) around(ctx context.Context) ([]goPackage, error) {
	outer := filepath.Dir(s.name)
	if sources, err := filepath.Glob(filepath.Join(s.root, outer, "*.go")); err != nil || len(sources) == 0 {
		return nil, err
	}
	p, err := s.list(ctx, outer)
	if err != nil || !slices.Contains(p.Imports, s.listed.ImportPath) {
		return nil, err
	}
	return []goPackage{p}, nil
}

// prepareTests runs tests without a mutant.
func (s *goSuite) prepareTests(ctx context.Context, t *goTests) error {
	if err := s.command(ctx, "test", "-c", "-cover", "-coverpkg="+s.listed.ImportPath, "-o", t.program, t.listed.ImportPath).Run(); err != nil {
		return fmt.Errorf("build the tests of %s: %w", t.listed.ImportPath, err)
	}
	profile := filepath.Join(s.dir, "coverage")
	start := time.Now()
	passed, output, err := isolated(ctx, 10*time.Minute, t.listed.Dir, nil, t.program, parallel, "-test.coverprofile="+profile)
	t.limit = timeout(time.Since(start))
	if err != nil {
		return err
	}
	if !passed {
		return fmt.Errorf("the tests of %s fail without a mutant:\n%s", t.listed.ImportPath, output)
	}
	text, err := os.ReadFile(profile)
	if err != nil {
		return err
	}
	if t.covered, err = parseCoverage(string(text), s.listed.ImportPath, s.name); err != nil {
		return err
	}
	t.builds, err = t.testsBuild()
	return err
}

// testsBuild reports whether the tests build programs.
func (t *goTests) testsBuild() (bool, error) {
	for _, base := range slices.Concat(t.listed.TestGoFiles, t.listed.XTestGoFiles) {
		text, err := os.ReadFile(filepath.Join(t.listed.Dir, base))
		if err != nil || bytes.Contains(text, []byte(`exec.Command("go", "build"`)) {
			return err == nil, err
		}
	}
	return false, nil
}

func (s *goSuite) try(ctx context.Context, m mutant) (verdict, error) {
	overlay, err := s.overlay(m)
	if err != nil {
		return void, err
	}
	reached := false
	for _, t := range s.tests {
		// The coverage of programs that tests build is unknown.
		if !t.builds && !t.covered.reaches(m.file, s.texts[m.file], m.start) {
			continue
		}
		reached = true
		if v, err := s.tryTests(ctx, t, overlay); err != nil || v != survived {
			return v, err
		}
	}
	if reached {
		return survived, nil
	}
	return s.build(ctx, "build", "-overlay", overlay, "./"+s.name)
}

// tryTests runs tests on the mutant of an overlay.
func (s *goSuite) tryTests(ctx context.Context, t *goTests, overlay string) (verdict, error) {
	v, err := s.build(ctx, "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", overlay, "-o", t.program, t.listed.ImportPath)
	if err != nil || v == void {
		return v, err
	}
	// The test's own time-out is shorter, so that the test reports where it hangs.
	passed, _, err := isolated(ctx, t.limit+slack, t.listed.Dir, []string{"GOFLAGS=-overlay=" + overlay},
		t.program, parallel, "-test.failfast", "-test.timeout="+t.limit.String())
	if err != nil || passed {
		return survived, err
	}
	return killed, nil
}

// overlay writes the mutant's file and the description of an overlay with it.
func (s *goSuite) overlay(m mutant) (string, error) {
	mutated := filepath.Join(s.dir, "mutant.go")
	description, err := json.Marshal(map[string]any{
		"Replace": map[string]string{filepath.Join(s.listed.Dir, filepath.Base(m.file)): mutated},
	})
	path := filepath.Join(s.dir, "overlay.json")
	return path, errors.Join(err,
		os.WriteFile(mutated, []byte(m.apply(s.texts[m.file])), 0o644),
		os.WriteFile(path, description, 0o644))
}

// build runs go with arguments. A mutant that does not compile is void.
func (s *goSuite) build(ctx context.Context, args ...string) (verdict, error) {
	err := s.command(ctx, args...).Run()
	var failed *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return void, ctx.Err()
	case errors.As(err, &failed):
		return void, nil
	}
	return survived, err
}

func (s *goSuite) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = s.root
	return cmd
}

// withOutput adds a program's standard error to its error.
func withOutput(err error) error {
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(failed.Stderr))
	}
	return err
}
