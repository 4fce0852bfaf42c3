// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/image"
)

// licencePrefixes are the prefixes, in upper case, of files that must accompany a module.
var licencePrefixes = []string{"LICENSE", "LICENCE", "COPYING", "NOTICE"}

// thirdParty returns the text that must accompany the image. The text contains
// the licences of the linked Go modules, of Go's standard library, and of the
// image's system libraries.
func thirdParty(module string, programs map[string]string, files []image.File) ([]byte, error) {
	modules, err := linkedModules(programs)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	fmt.Fprintln(&text, "This image contains software of third parties, under the licences below.")
	if err := moduleLicences(&text, module, modules); err != nil {
		return nil, err
	}
	packages, err := image.Packages(files)
	if err != nil {
		return nil, err
	}
	for _, pkg := range packages {
		copyright, err := os.ReadFile(filepath.Join("/usr/share/doc", pkg.Name, "copyright"))
		if err != nil {
			return nil, fmt.Errorf("licence of the system's package %s: %w", pkg.Name, err)
		}
		section(&text, "package "+pkg.Name, copyright)
	}
	return text.Bytes(), nil
}

// linkedModules returns the modules that are linked into the Go programs,
// sorted.
func linkedModules(programs map[string]string) ([]string, error) {
	var modules []string
	for _, file := range programs {
		info, err := buildinfo.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("modules of %s: %w", file, err)
		}
		for _, dep := range info.Deps {
			modules = append(modules, dep.Path)
		}
	}
	slices.Sort(modules)
	return slices.Compact(modules), nil
}

func moduleLicences(text *bytes.Buffer, module string, modules []string) error {
	goroot, err := goCommand("env", "GOROOT")
	if err != nil {
		return err
	}
	dirs := []string{"Go standard library\t" + strings.TrimSpace(goroot)}
	if len(modules) > 0 {
		list, err := goCommand(append([]string{"-C", module, "list", "-m", "-f", "{{.Path}} {{.Version}}\t{{.Dir}}"}, modules...)...)
		if err != nil {
			return err
		}
		dirs = append(dirs, strings.Split(strings.TrimSpace(list), "\n")...)
	}
	for _, line := range dirs {
		name, dir, _ := strings.Cut(line, "\t")
		licences, err := licencesIn(dir)
		if err != nil {
			return fmt.Errorf("licence of %s: %w", name, err)
		}
		for _, file := range licences {
			content, err := os.ReadFile(file)
			if err != nil {
				return fmt.Errorf("licence of %s: %w", name, err)
			}
			section(text, name+", "+filepath.Base(file), content)
		}
	}
	return nil
}

func licencesIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, entry := range entries {
		upper := strings.ToUpper(entry.Name())
		if !entry.IsDir() && slices.ContainsFunc(licencePrefixes, func(p string) bool { return strings.HasPrefix(upper, p) }) {
			found = append(found, filepath.Join(dir, entry.Name()))
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("none in %s", dir)
	}
	return found, nil
}

func section(text *bytes.Buffer, title string, content []byte) {
	rule := strings.Repeat("=", 78)
	fmt.Fprintf(text, "\n%s\n%s\n%s\n\n%s\n", rule, title, rule, bytes.TrimSpace(content))
}

func goCommand(args ...string) (string, error) {
	var stderr bytes.Buffer
	cmd := exec.Command("go", args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w: %s", args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), nil
}
