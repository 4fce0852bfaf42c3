// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"path/filepath"
	"slices"
	"text/template"

	"github.com/nri-vgpu/nri-vgpu/deploy/notices"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
)

// programs lists the builds of vgpuctl for all systems and architectures.
func (o options) programs() []string {
	var all []string
	for _, build := range o.builds {
		all = append(all, filepath.Join(build, "bin", "vgpuctl"))
	}
	return append(all, o.clients...)
}

// writePrograms packs kubectl's plugin and vgpuctl, which are one program under two names. vgpuctl for
// Linux also needs the interposer, to run programs under limits.
func writePrograms(o options) error {
	for _, program := range o.programs() {
		system, err := setting(program, "GOOS")
		if err != nil {
			return err
		}
		architecture, err := setting(program, "GOARCH")
		if err != nil {
			return err
		}
		suffix := ""
		if system == "windows" {
			suffix = ".exe"
		}
		thirdParty, err := notices.Text(o.source, []string{program}, nil)
		if err != nil {
			return err
		}
		for _, name := range []string{"kubectl-vgpu", "vgpuctl"} {
			entries := []entry{
				{path: name + suffix, source: program, executable: true},
				{path: "LICENSE", source: filepath.Join(o.source, "LICENSE")},
				{path: notices.Name, content: thirdParty},
			}
			if name == "vgpuctl" && system == "linux" {
				entries = append(entries, interposer(filepath.Join(filepath.Dir(program), "../lib"))...)
			}
			if system != "windows" {
				pages, err := o.pages(name)
				if err != nil {
					return err
				}
				entries = append(entries, pages...)
			}
			content, err := archive(entries)
			if err != nil {
				return err
			}
			if err := o.write(fmt.Sprintf("%s_%s_%s.tar.gz", name, system, architecture), content); err != nil {
				return err
			}
		}
	}
	return nil
}

// interposer lists the files of a build that vgpuctl finds beside itself.
func interposer(lib string) []entry {
	var entries []entry
	for _, name := range slices.Concat(paths.Libraries, paths.Helpers) {
		entries = append(entries, entry{path: "lib/" + name, source: filepath.Join(lib, name), executable: true})
	}
	return entries
}

// pages lists the manual pages of a program. man finds share/man if share is beside a directory bin of
// the PATH.
func (o options) pages(program string) ([]entry, error) {
	files, err := filepath.Glob(filepath.Join(o.man, program+"*.1"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("find the manual pages of %s in %q: no file: run make man", program, o.man)
	}
	var entries []entry
	for _, file := range files {
		entries = append(entries, entry{path: "share/man/man1/" + filepath.Base(file), source: file})
	}
	return entries, nil
}

// setting returns a setting with which Go built a program.
func setting(program, key string) (string, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return "", fmt.Errorf("read how Go built %s: %w", program, err)
	}
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value, nil
		}
	}
	return "", fmt.Errorf("read how Go built %s: no %s", program, key)
}

// writeKrew writes krew's manifest from the template for krew's release bot.
func writeKrew(o options) error {
	const name = "vgpu.yaml"
	asset := func(uri, tag string) (string, error) {
		var address bytes.Buffer
		parsed, err := template.New("uri").Parse(uri)
		if err != nil {
			return "", err
		}
		if err := parsed.Execute(&address, map[string]string{"TagName": tag}); err != nil {
			return "", err
		}
		sum, err := o.sum(filepath.Base(address.String()))
		return fmt.Sprintf("uri: %s\n      sha256: %s", &address, sum), err
	}
	parsed, err := template.New(name).Funcs(template.FuncMap{"addURIAndSha": asset}).
		ParseFiles(filepath.Join(o.source, "deploy", "krew", name))
	if err != nil {
		return err
	}
	var manifest bytes.Buffer
	if err := parsed.Execute(&manifest, map[string]string{"TagName": "v" + o.version}); err != nil {
		return err
	}
	return o.write(name, manifest.Bytes())
}
