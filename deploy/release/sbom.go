// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"
)

// writeSBOM writes an SPDX document of the Go modules that the programs of all builds contain.
func writeSBOM(o options) error {
	modules, err := linkedModules(o.builds)
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
	root := modulePackage("github.com/nri-vgpu/nri-vgpu", "v"+o.version)
	root.PackageLicenseDeclared = "Apache-2.0"
	document.Packages = append(document.Packages, root)
	document.Relationships = append(document.Relationships, relation("DOCUMENT", "DESCRIBES", root))
	for _, m := range modules {
		path, version, _ := strings.Cut(m, "@")
		p := modulePackage(path, version)
		document.Packages = append(document.Packages, p)
		document.Relationships = append(document.Relationships, relation(root.PackageSPDXIdentifier, "CONTAINS", p))
	}
	var text bytes.Buffer
	if err := json.Write(&document, &text, json.Indent("  ")); err != nil {
		return err
	}
	return o.write(name, text.Bytes())
}

// modulePackage describes a Go module. SPDX identifiers consist of letters, digits, dots and hyphens.
func modulePackage(path, version string) *spdx.Package {
	id := strings.Map(func(r rune) rune {
		if strings.ContainsRune("/_~+@!", r) {
			return '-'
		}
		return r
	}, path+"-"+version)
	return &spdx.Package{
		PackageName:             path,
		PackageSPDXIdentifier:   spdx.ElementID("Package-" + id),
		PackageVersion:          version,
		PackageDownloadLocation: "NOASSERTION",
		PackageLicenseConcluded: "NOASSERTION",
		PackageLicenseDeclared:  "NOASSERTION",
		PackageCopyrightText:    "NOASSERTION",
		PackageExternalReferences: []*spdx.PackageExternalReference{{
			Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL,
			Locator: "pkg:golang/" + path + "@" + version,
		}},
	}
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

// linkedModules returns the modules in the released programs of the builds as path@version, sorted.
// The standard library is the module "stdlib".
func linkedModules(builds []string) ([]string, error) {
	var modules []string
	for _, build := range builds {
		for _, program := range released {
			info, err := buildinfo.ReadFile(filepath.Join(build, "bin", program))
			if err != nil {
				return nil, fmt.Errorf("modules of %s: %w", program, err)
			}
			modules = append(modules, "stdlib@"+strings.TrimPrefix(info.GoVersion, "go"))
			for _, dep := range info.Deps {
				modules = append(modules, dep.Path+"@"+dep.Version)
			}
		}
	}
	slices.Sort(modules)
	return slices.Compact(modules), nil
}
