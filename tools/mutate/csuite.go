// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A cSuite is a part of the interposer: the files NAME.c and NAME_*.c. The unit tests of a
// cSuite are the programs of interposer/test that link one of these files.
type cSuite struct {
	build *cBuild
	name  string

	texts map[string]string   // by file
	tests map[string][]*cTest // by file, in the order of execution
}

// A cTest is a unit test of the interposer without a mutant.
type cTest struct {
	program string
	sum     [sha256.Size]byte
	takes   time.Duration
}

func (s *cSuite) mutants() ([]mutant, error) {
	s.texts = map[string]string{}
	var all []mutant
	sources := filepath.Join(s.build.root, "interposer", "src")
	err := filepath.WalkDir(sources, func(path string, entry fs.DirEntry, err error) error {
		part, isC := strings.CutSuffix(filepath.Base(path), ".c")
		if err != nil || entry.IsDir() || !isC || part != s.name && !strings.HasPrefix(part, s.name+"_") {
			return err
		}
		text, err := os.ReadFile(path) //nolint:gosec // the tree belongs to the developer
		if err != nil {
			return err
		}
		file, err := filepath.Rel(s.build.root, path)
		if err != nil {
			return err
		}
		s.texts[file] = string(text)
		all = append(all, cMutants(file, string(text))...)
		return nil
	})
	return all, err
}

func (s *cSuite) prepare(ctx context.Context) error {
	if err := s.build.prepare(ctx); err != nil {
		return err
	}
	s.tests = map[string][]*cTest{}
	for file := range s.texts {
		programs, err := s.build.programsWith(ctx, file)
		if err != nil {
			return err
		}
		for _, program := range programs {
			test, err := s.build.test(ctx, program)
			if err != nil {
				return err
			}
			s.tests[file] = append(s.tests[file], test)
		}
		slices.SortFunc(s.tests[file], func(a, b *cTest) int { return cmp.Compare(a.takes, b.takes) })
	}
	return nil
}

func (s *cSuite) try(ctx context.Context, m mutant) (v verdict, err error) {
	if err := s.build.write(m.file, m.apply(s.texts[m.file])); err != nil {
		return void, err
	}
	defer func() { err = errors.Join(err, s.build.write(m.file, s.texts[m.file])) }()
	v = void
	tests := s.tests[m.file]
	for i, test := range tests {
		if err := s.build.make(ctx, test.program).Run(); err != nil {
			return void, ctx.Err()
		}
		sum, err := sumOf(test.program)
		if err != nil {
			return void, err
		}
		if sum == test.sum {
			continue
		}
		v = survived
		passed, _, err := isolated(ctx, timeout(test.takes), s.build.interposer(), nil, test.program)
		if err != nil {
			return void, err
		}
		if !passed {
			// The same test probably detects the next mutant of the file.
			copy(tests[1:i+1], tests[:i])
			tests[0] = test
			return killed, nil
		}
	}
	return v, nil
}

// A cBuild is a copy of the interposer's sources with a separate build directory. The copy
// persists between runs, so that only changed files are rebuilt.
type cBuild struct {
	root, dir string
	ready     bool
	tests     map[string]*cTest // by program
}

func (b *cBuild) interposer() string {
	return filepath.Join(b.dir, "interposer")
}

// prepare copies the sources and builds the tests.
func (b *cBuild) prepare(ctx context.Context) error {
	if b.ready {
		return nil
	}
	b.tests = map[string]*cTest{}
	if err := mirror(filepath.Join(b.root, "interposer"), b.interposer()); err != nil {
		return fmt.Errorf("copy the interposer's sources: %w", err)
	}
	if output, err := b.make(ctx, unitPrograms).CombinedOutput(); err != nil {
		return fmt.Errorf("build the interposer's tests: %w:\n%s", err, output)
	}
	b.ready = true
	return nil
}

// unitPrograms is the target of all tests.
const unitPrograms = "unit-programs"

// make builds targets. Warnings are off, because a compiler's warning is not a test. Debug
// information is off, so that equal code results in equal programs.
func (b *cBuild) make(ctx context.Context, args ...string) *exec.Cmd {
	common := []string{"-C", b.interposer(), "BUILD=" + filepath.Join(b.dir, "build"),
		"INCLUDE=" + filepath.Join(b.root, "include"), "CFLAGS=-O3", "WARNINGS=-w"}
	return exec.CommandContext(ctx, "make", append(common, args...)...)
}

var linked = regexp.MustCompile(` -o (\S+_test) `)

// programsWith returns the tests that link a file.
func (b *cBuild) programsWith(ctx context.Context, file string) ([]string, error) {
	inside := strings.TrimPrefix(filepath.ToSlash(file), interposerPrefix)
	out, err := b.make(ctx, "--dry-run", "--what-if="+inside, unitPrograms).Output()
	if err != nil {
		return nil, fmt.Errorf("list the tests of %s: %w", file, withOutput(err))
	}
	var programs []string
	for _, match := range linked.FindAllStringSubmatch(string(out), -1) {
		programs = append(programs, match[1])
	}
	if len(programs) == 0 {
		return nil, fmt.Errorf("no test is linked with %s", file)
	}
	return programs, nil
}

// test runs a test once without a mutant, and caches the result.
func (b *cBuild) test(ctx context.Context, program string) (*cTest, error) {
	if known, ok := b.tests[program]; ok {
		return known, nil
	}
	sum, err := sumOf(program)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	passed, output, err := isolated(ctx, 10*time.Minute, b.interposer(), nil, program)
	if err == nil && !passed {
		err = fmt.Errorf("%s fails without a mutant:\n%s", program, output)
	}
	b.tests[program] = &cTest{program: program, sum: sum, takes: time.Since(start)}
	return b.tests[program], err
}

// write replaces a file of the copy.
func (b *cBuild) write(file, text string) error {
	return os.WriteFile(filepath.Join(b.dir, file), []byte(text), 0o644)
}

func sumOf(path string) ([sha256.Size]byte, error) {
	content, err := os.ReadFile(path)
	return sha256.Sum256(content), err
}

// mirror makes a directory a copy of another directory. Unchanged files keep their times, which
// make compares.
func mirror(from, to string) error {
	old := os.DirFS(to)
	err := fs.WalkDir(old, ".", func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || entry.IsDir() {
			return err
		}
		if _, err := os.Stat(filepath.Join(from, path)); errors.Is(err, fs.ErrNotExist) {
			return os.Remove(filepath.Join(to, path))
		}
		return nil
	})
	if err != nil {
		return err
	}
	return fs.WalkDir(os.DirFS(from), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return errors.Join(err, os.MkdirAll(filepath.Join(to, path), 0o755))
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		return copyChanged(filepath.Join(from, path), filepath.Join(to, path), info.Mode())
	})
}

func copyChanged(from, to string, mode fs.FileMode) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if there, err := os.ReadFile(to); err == nil && string(there) == string(content) {
		return nil
	}
	return os.WriteFile(to, content, mode)
}
