// SPDX-License-Identifier: Apache-2.0

// Command release writes the files of a release, except the images, into a directory. These files
// are the chart, the manifests, the programs, krew's manifest, the SBOM, a bundle and the checksums.
// Equal builds result in equal files.
package main

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/internal/version"
)

// checksums is the name of the file with the checksums of all other files.
const checksums = "SHA256SUMS"

// options describe a release.
type options struct {
	source, version, output string
	// builds are the directories of the builds, one for each architecture.
	builds []string
	// seconds is the time stamp of the SBOM, in seconds since 1970.
	seconds int64
}

func main() {
	var o options
	flag.StringVar(&o.source, "source", ".", "the repository's root")
	flag.StringVar(&o.version, "version", version.Version, "release")
	flag.StringVar(&o.output, "output", "", "directory of the release, which contains the images")
	flag.Int64Var(&o.seconds, "date", 0, "date of the SBOM, in seconds since 1970")
	flag.Func("build", "directory of a build; repeat for each architecture", func(dir string) error {
		o.builds = append(o.builds, dir)
		return nil
	})
	flag.Parse()
	if err := release(o); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// release writes all files. The bundle contains the earlier files, and the checksums cover the bundle.
func release(o options) error {
	if !versionPattern.MatchString(o.version) {
		return fmt.Errorf("release %q: the chart needs a semantic version: set VERSION=0.1.0, for instance", o.version)
	}
	for _, step := range []struct {
		name  string
		write func(options) error
	}{
		{"chart", writeChart}, {"manifests", writeManifests}, {"programs", writePrograms},
		{"krew's manifest", writeKrew}, {"SBOM", writeSBOM}, {"bundle", writeBundle}, {"checksums", writeChecksums},
	} {
		if err := step.write(o); err != nil {
			return fmt.Errorf("%s of release %s: %w", step.name, o.version, err)
		}
	}
	return nil
}

// writeManifests writes the manifests of the source tree with the release's version.
func writeManifests(o options) error {
	for _, name := range []string{"nri-vgpu.yaml", "uninstall.yaml"} {
		content, err := o.stamped(filepath.Join("deploy", name))
		if err != nil {
			return err
		}
		if err := o.write(name, content); err != nil {
			return err
		}
	}
	return nil
}

// stamped returns a file of the source tree, in which the release's version replaces the tree's.
func (o options) stamped(name string) ([]byte, error) {
	content, err := os.ReadFile(filepath.Join(o.source, name))
	if err != nil {
		return nil, err
	}
	if !bytes.Contains(content, []byte(version.Base)) {
		return nil, fmt.Errorf("%s does not contain the version %s: run make chart", name, version.Base)
	}
	return bytes.ReplaceAll(content, []byte(version.Base), []byte(o.version)), nil
}

// writeBundle writes one archive of all files.
func writeBundle(o options) error {
	name := fmt.Sprintf("nri-vgpu-%s-bundle", o.version)
	files, err := o.files()
	if err != nil {
		return err
	}
	var entries []entry
	for _, f := range files {
		entries = append(entries, entry{path: name + "/" + f, source: filepath.Join(o.output, f)})
	}
	content, err := archive(entries)
	if err != nil {
		return err
	}
	return o.write(name+".tar.gz", content)
}

// writeChecksums writes the checksums of all files in the format of sha256sum.
func writeChecksums(o options) error {
	files, err := o.files()
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, f := range files {
		sum, err := o.sum(f)
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%s  %s\n", sum, f)
	}
	return o.write(checksums, []byte(sums.String()))
}

// sum returns the checksum of a file of the release.
func (o options) sum(name string) (string, error) {
	content, err := os.ReadFile(filepath.Join(o.output, name))
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sha256.Sum256(content)), nil
}

// files lists the written files, sorted.
func (o options) files() ([]string, error) {
	entries, err := os.ReadDir(o.output)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// write writes a file of the release.
func (o options) write(name string, content []byte) error {
	return os.WriteFile(filepath.Join(o.output, name), content, 0o644)
}
