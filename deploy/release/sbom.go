// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/image"
)

// writeSBOM writes an SPDX document of the parts of the programs and images. The parts are the linked
// Go modules, our C libraries and C programs, and the C library of Debian.
func writeSBOM(o options) error {
	packages, err := o.parts()
	if err != nil {
		return err
	}
	name := fmt.Sprintf("nri-vgpu-%s.spdx.json", o.version)
	document := spdx.Document{
		SPDXVersion:       spdx.Version,
		DataLicense:       spdx.DataLicense,
		SPDXIdentifier:    "DOCUMENT",
		DocumentName:      name,
		DocumentNamespace: "https://github.com/nri-vgpu/nri-vgpu/releases/download/v" + o.version + "/" + name,
		CreationInfo: &spdx.CreationInfo{
			Creators: []spdx.Creator{{CreatorType: "Tool", Creator: "nri-vgpu/deploy/release"}},
			Created:  time.Unix(o.seconds, 0).UTC().Format(time.RFC3339),
		},
	}
	root := ours(modulePackage("github.com/nri-vgpu/nri-vgpu", "v"+o.version))
	document.Packages = append(document.Packages, root)
	document.Relationships = append(document.Relationships, relation("DOCUMENT", "DESCRIBES", root))
	for _, p := range packages {
		document.Packages = append(document.Packages, p)
		document.Relationships = append(document.Relationships, relation(root.PackageSPDXIdentifier, "CONTAINS", p))
	}
	var text bytes.Buffer
	if err := json.Write(&document, &text, json.Indent("  ")); err != nil {
		return err
	}
	return o.write(name, text.Bytes())
}

// parts returns the packages that the release contains, except nri-vgpu itself.
func (o options) parts() ([]*spdx.Package, error) {
	modules, err := o.linkedModules()
	if err != nil {
		return nil, err
	}
	var all []*spdx.Package
	for _, m := range modules {
		path, version, _ := strings.Cut(m, "@")
		all = append(all, modulePackage(path, version))
	}
	for _, build := range o.builds {
		libraries, err := o.libraries(build)
		if err != nil {
			return nil, err
		}
		all = append(all, libraries...)
	}
	return all, nil
}

// libraries returns the packages of a build in C: our libraries and programs, and the packages of
// Debian with the agent's libraries.
func (o options) libraries(build string) ([]*spdx.Package, error) {
	agent := filepath.Join(build, "bin", "nri-vgpu")
	architecture, err := setting(agent, "GOARCH")
	if err != nil {
		return nil, err
	}
	var all []*spdx.Package
	for _, name := range slices.Concat(paths.Libraries, paths.Helpers) {
		p, err := o.libraryPackage(filepath.Join(build, "lib", name), architecture)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	files, err := image.Programs(map[string]string{"/nri-vgpu": agent})
	if err != nil {
		return nil, err
	}
	debian, err := image.Packages(files)
	if err != nil {
		return nil, err
	}
	for _, d := range debian {
		all = append(all, debianPackage(d))
	}
	return all, nil
}

// libraryPackage describes one of our C libraries or C programs.
func (o options) libraryPackage(file, architecture string) (*spdx.Package, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	name := filepath.Base(file)
	p := ours(newPackage(name, "v"+o.version, architecture))
	p.PackageFileName = name
	p.PackageSummary = "part of nri-vgpu in C, for " + architecture
	p.PackageChecksums = []spdx.Checksum{{Algorithm: common.SHA256, Value: fmt.Sprintf("%x", sha256.Sum256(content))}}
	return p, nil
}

// debianPackage describes a package of Debian.
func debianPackage(d image.Package) *spdx.Package {
	p := newPackage(d.Name, d.Version, d.Architecture)
	return located(p, fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", d.Name, url.QueryEscape(d.Version), d.Architecture))
}

// modulePackage describes a Go module.
func modulePackage(path, version string) *spdx.Package {
	return located(newPackage(path, version), "pkg:golang/"+path+"@"+version)
}

// newPackage describes a package with a version. more distinguishes packages of equal names.
func newPackage(name, version string, more ...string) *spdx.Package {
	// SPDX identifiers consist of letters, digits, dots and hyphens.
	id := strings.Map(func(r rune) rune {
		if strings.ContainsRune("/_~+@!:", r) {
			return '-'
		}
		return r
	}, strings.Join(append([]string{"Package", name, version}, more...), "-"))
	return &spdx.Package{
		PackageName:             name,
		PackageSPDXIdentifier:   spdx.ElementID(id),
		PackageVersion:          version,
		PackageDownloadLocation: "NOASSERTION",
		PackageLicenseConcluded: "NOASSERTION",
		PackageLicenseDeclared:  "NOASSERTION",
		PackageCopyrightText:    "NOASSERTION",
	}
}

// located adds the URL of a package in its registry.
func located(p *spdx.Package, purl string) *spdx.Package {
	p.PackageExternalReferences = []*spdx.PackageExternalReference{{
		Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: purl,
	}}
	return p
}

// ours adds the licence of nri-vgpu.
func ours(p *spdx.Package) *spdx.Package {
	p.PackageLicenseDeclared = "Apache-2.0"
	return p
}

func relation(from spdx.ElementID, kind string, to *spdx.Package) *spdx.Relationship {
	return &spdx.Relationship{
		RefA:         common.MakeDocElementID("", string(from)),
		RefB:         common.MakeDocElementID("", string(to.PackageSPDXIdentifier)),
		Relationship: kind,
	}
}

// released are the Go programs of a release.
var released = []string{"nri-vgpu", "nri-vgpu-guard", "extended-resource-patcher", "nri-vgpu-view", "vgpuctl", "nri-vgpu-scheduler"}

// linkedModules returns the modules in all released programs as path@version, sorted. The standard
// library is the module "stdlib".
func (o options) linkedModules() ([]string, error) {
	programs := slices.Clone(o.clients)
	for _, build := range o.builds {
		for _, name := range released {
			programs = append(programs, filepath.Join(build, "bin", name))
		}
	}
	var modules []string
	for _, program := range programs {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return nil, fmt.Errorf("list the modules of %s: %w", program, err)
		}
		modules = append(modules, "stdlib@"+strings.TrimPrefix(info.GoVersion, "go"))
		for _, dep := range info.Deps {
			modules = append(modules, dep.Path+"@"+dep.Version)
		}
	}
	slices.Sort(modules)
	return slices.Compact(modules), nil
}
