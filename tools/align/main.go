// SPDX-License-Identifier: Apache-2.0

// Command align checks that the Go modules which make test builds require the same versions of
// their common dependencies. Programs share compiled packages only if all versions below the
// packages are equal, and Kubernetes alone takes minutes to compile. With --write, align raises the
// older versions.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"golang.org/x/mod/semver"
)

// aligned are the directories of the modules.
var aligned = []string{".", "scheduler", "tools/etcd", "tools/helm", "tools/kubernetes", "tools/prometheus"}

func main() {
	write := flag.Bool("write", false, "raise the older versions")
	flag.Parse()
	if err := run(*write); err != nil {
		fmt.Fprintln(os.Stderr, "align:", err)
		os.Exit(1)
	}
}

// run checks the modules, or raises versions until nothing is left to raise, because a raised
// module can require newer versions itself.
func run(write bool) error {
	for {
		modules, err := readAll(aligned)
		if err != nil {
			return err
		}
		older := olderVersions(modules)
		if len(older) == 0 {
			return nil
		}
		if !write {
			return fmt.Errorf("versions differ; run 'go run ./tools/align --write':\n%w", joined(older))
		}
		for _, m := range modules {
			if err := raise(m, older); err != nil {
				return err
			}
		}
	}
}

// A module is one go.mod: its directory, and the versions that a build uses by the path of the
// dependency. The versions in fixed come from replace directives.
type module struct {
	dir      string
	versions map[string]string
	fixed    map[string]bool
}

// An old version is a version in a module for which another module requires a newer one.
type old struct {
	module       *module
	path, newest string
}

func (o old) Error() string {
	return fmt.Sprintf("%s: %s %s, elsewhere %s", filepath.Join(o.module.dir, "go.mod"), o.path, o.module.versions[o.path], o.newest)
}

func readAll(dirs []string) ([]*module, error) {
	var modules []*module
	for _, dir := range dirs {
		out, err := command(dir, "mod", "edit", "-json")
		if err != nil {
			return nil, err
		}
		m, err := parse(dir, out)
		if err != nil {
			return nil, err
		}
		modules = append(modules, m)
	}
	return modules, nil
}

// parse reads the output of "go mod edit -json".
func parse(dir string, data []byte) (*module, error) {
	type version struct{ Path, Version string }
	var file struct {
		Require []version
		Replace []struct{ Old, New version }
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, "go.mod"), err)
	}
	m := &module{dir: dir, versions: map[string]string{}, fixed: map[string]bool{}}
	for _, r := range file.Require {
		m.versions[r.Path] = r.Version
	}
	for _, r := range file.Replace {
		if _, required := m.versions[r.Old.Path]; required && r.Old.Version == "" {
			m.versions[r.Old.Path], m.fixed[r.Old.Path] = r.New.Version, true
		}
	}
	return m, nil
}

// olderVersions returns the versions that are older than in another module, in the order of their
// paths.
func olderVersions(modules []*module) []old {
	newest := map[string]string{}
	for _, m := range modules {
		for path, version := range m.versions {
			if semver.Compare(version, newest[path]) > 0 {
				newest[path] = version
			}
		}
	}
	var older []old
	for _, m := range modules {
		for path, version := range m.versions {
			if version != newest[path] {
				older = append(older, old{m, path, newest[path]})
			}
		}
	}
	slices.SortFunc(older, func(a, b old) int {
		return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.module.dir, b.module.dir))
	})
	return older
}

// raise requires the newest versions in the module. A replace directive is the user's to change.
func raise(m *module, older []old) error {
	args := map[string]bool{}
	for _, o := range older {
		if o.module != m {
			continue
		}
		if m.fixed[o.path] {
			return fmt.Errorf("change the replace directive: %w", o)
		}
		args["-require="+o.path+"@"+o.newest] = true
	}
	if len(args) == 0 {
		return nil
	}
	if _, err := command(m.dir, append([]string{"mod", "edit"}, slices.Sorted(maps.Keys(args))...)...); err != nil {
		return err
	}
	_, err := command(m.dir, "mod", "tidy")
	return err
}

func command(dir string, args ...string) ([]byte, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, err := cmd.Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return nil, fmt.Errorf("go %v in %s: %w\n%s", args, dir, err, exit.Stderr)
	}
	return out, err
}

func joined(older []old) error {
	var all []error
	for _, o := range older {
		all = append(all, o)
	}
	return errors.Join(all...)
}
