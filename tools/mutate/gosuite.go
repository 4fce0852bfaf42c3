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

	listed  goPackage
	builds  bool              // the tests build programs, which may contain the package
	texts   map[string]string // by file
	covered coverage
	limit   time.Duration
}

// A goPackage is the output of go list for a package.
type goPackage struct {
	Dir, ImportPath           string
	GoFiles, CgoFiles         []string
	TestGoFiles, XTestGoFiles []string
}

func (s *goSuite) mutants() ([]mutant, error) {
	out, err := s.command(context.Background(), "list", "-json=Dir,ImportPath,GoFiles,CgoFiles,TestGoFiles,XTestGoFiles", "./"+s.name).Output()
	if err != nil {
		return nil, fmt.Errorf("list package %s: %w", s.name, withOutput(err))
	}
	if err := json.Unmarshal(out, &s.listed); err != nil {
		return nil, err
	}
	s.texts = map[string]string{}
	var all []mutant
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
	if err := s.command(ctx, "test", "-c", "-cover", "-o", s.program(), "./"+s.name).Run(); err != nil {
		return fmt.Errorf("build the tests of %s: %w", s.name, err)
	}
	profile := filepath.Join(s.dir, "coverage")
	start := time.Now()
	passed, output, err := isolated(ctx, 10*time.Minute, s.listed.Dir, nil, s.program(), "-test.coverprofile="+profile)
	s.limit = timeout(time.Since(start))
	if err != nil {
		return err
	}
	if !passed {
		return fmt.Errorf("the tests of %s fail without a mutant:\n%s", s.name, output)
	}
	text, err := os.ReadFile(profile)
	if err != nil {
		return err
	}
	s.covered, err = parseCoverage(string(text), s.listed.ImportPath, s.name)
	if err == nil {
		s.builds, err = s.testsBuild()
	}
	return err
}

// testsBuild reports whether the package's tests build programs.
func (s *goSuite) testsBuild() (bool, error) {
	for _, base := range slices.Concat(s.listed.TestGoFiles, s.listed.XTestGoFiles) {
		text, err := os.ReadFile(filepath.Join(s.listed.Dir, base))
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
	text := s.texts[m.file]
	// The coverage of programs that tests build is unknown.
	if !s.builds && !s.covered.reaches(m.file, text, m.start) {
		return s.build(ctx, "build", "-overlay", overlay, "./"+s.name)
	}
	v, err := s.build(ctx, "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", overlay, "-o", s.program(), "./"+s.name)
	if err != nil || v == void {
		return v, err
	}
	// The test's own time-out is shorter, so that the test reports where it hangs.
	passed, _, err := isolated(ctx, s.limit+slack, s.listed.Dir, []string{"GOFLAGS=-overlay=" + overlay},
		s.program(), "-test.failfast", "-test.timeout="+s.limit.String())
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

func (s *goSuite) program() string {
	return filepath.Join(s.dir, "package.test")
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
