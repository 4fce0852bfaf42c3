// SPDX-License-Identifier: Apache-2.0

// Package notices collects the licences of third parties, which must accompany programs and images.
package notices

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/image"
)

// Name is the name of the file with the licences.
const Name = "THIRD-PARTY-NOTICES"

// ours begins the paths of the Go modules of nri-vgpu.
const ours = "github.com/nri-vgpu/nri-vgpu"

var (
	// licence matches the names of files that must accompany a module. Sources in Go may have these
	// names, too.
	licence = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice)s?([-.].*)?$`)
	// common matches references to the licences that Debian stores once for all packages.
	common = regexp.MustCompile(`/usr/share/common-licenses/[A-Za-z0-9.-]*[A-Za-z0-9]`)
)

// Text returns the text that must accompany Go programs of a module, and the files of an image. The
// text contains the licences of the linked Go modules, of Go's standard library, and of the Debian
// packages of the files' shared libraries.
func Text(module string, programs []string, files []image.File) ([]byte, error) {
	modules, err := linkedModules(programs)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	fmt.Fprintln(&text, "This software contains parts of third parties, under the licences below.")
	if err := writeModules(&text, module, modules); err != nil {
		return nil, err
	}
	if err := writePackages(&text, files); err != nil {
		return nil, err
	}
	return text.Bytes(), nil
}

// linkedModules returns the modules of third parties in Go programs, sorted.
func linkedModules(programs []string) ([]string, error) {
	var modules []string
	for _, file := range programs {
		info, err := buildinfo.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("list the modules of %s: %w", file, err)
		}
		for _, dep := range info.Deps {
			if !strings.HasPrefix(dep.Path, ours) {
				modules = append(modules, dep.Path)
			}
		}
	}
	slices.Sort(modules)
	return slices.Compact(modules), nil
}

func writeModules(text *bytes.Buffer, module string, modules []string) error {
	goroot, err := goCommand("env", "GOROOT")
	if err != nil {
		return err
	}
	content, err := os.ReadFile(filepath.Join(strings.TrimSpace(goroot), "LICENSE"))
	if err != nil {
		return fmt.Errorf("read the licence of Go: %w", err)
	}
	section(text, "Go standard library", content)
	if len(modules) == 0 {
		return nil
	}
	list, err := goCommand(append([]string{"-C", module, "list", "-m", "-f", "{{.Path}} {{.Version}}\t{{.Dir}}"}, modules...)...)
	if err != nil {
		return err
	}
	for line := range strings.Lines(list) {
		name, dir, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if err := writeModule(text, name, dir); err != nil {
			return fmt.Errorf("read the licence of %s: %w", name, err)
		}
	}
	return nil
}

// writeModule writes the licences in the directory of a module.
func writeModule(text *bytes.Buffer, name, dir string) error {
	licences, err := licencesIn(dir)
	if err != nil {
		return err
	}
	for _, file := range licences {
		content, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return err
		}
		section(text, name+", "+file, content)
	}
	return nil
}

// licencesIn returns the paths of the licences below the directory of a module. A licence below a
// subdirectory covers a part that the module has copied from another project. licencesIn returns an
// error if the module itself has no licence.
func licencesIn(dir string) ([]string, error) {
	var found []string
	own := false
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch name := entry.Name(); {
		case entry.IsDir() && path != dir && (name == "testdata" || strings.HasPrefix(name, ".")):
			return filepath.SkipDir
		case !entry.IsDir() && licence.MatchString(name) && filepath.Ext(name) != ".go":
			relative, err := filepath.Rel(dir, path)
			own = own || relative == name
			found = append(found, relative)
			return err
		}
		return nil
	})
	if err == nil && !own {
		err = fmt.Errorf("no licence in %s", dir)
	}
	return found, err
}

// writePackages writes the licences of the packages that contain shared libraries among the files. The
// licence of a package may refer to common licences of Debian.
func writePackages(text *bytes.Buffer, files []image.File) error {
	packages, err := image.Packages(files)
	if err != nil {
		return err
	}
	var commons []string
	for _, pkg := range packages {
		copyright, err := os.ReadFile(filepath.Join("/usr/share/doc", pkg.Name, "copyright"))
		if err != nil {
			return fmt.Errorf("read the licence of the system's package %s: %w", pkg.Name, err)
		}
		section(text, "package "+pkg.Name, copyright)
		commons = append(commons, common.FindAllString(string(copyright), -1)...)
	}
	slices.Sort(commons)
	for _, file := range slices.Compact(commons) {
		content, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read a licence that the system's packages refer to: %w", err)
		}
		section(text, file, content)
	}
	return nil
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
