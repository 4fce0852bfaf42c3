// SPDX-License-Identifier: Apache-2.0

// Command release writes the files of a release, except the images, into a directory. These files
// are the chart, the manifests, the programs, krew's manifest, the SBOM, a bundle, the checksums and
// their signature. Equal builds result in equal files, except for the signature.
package main

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	semver "k8s.io/apimachinery/pkg/util/version"

	"github.com/nri-vgpu/nri-vgpu/internal/version"
)

// checksums is the name of the file with the checksums of all other files.
const checksums = "SHA256SUMS"

// options describe a release.
type options struct {
	source, version, output string
	// builds are the directories of the builds for Linux, one for each architecture. clients are the
	// builds of vgpuctl for other systems.
	builds, clients []string
	// man is the directory of the manual pages.
	man string
	// key is the path of the private key that signs the checksums, "" for no signature.
	key string
	// seconds is the time stamp of the SBOM, in seconds since 1970.
	seconds int64
}

func main() {
	var o options
	flag.StringVar(&o.source, "source", ".", "the repository's root")
	flag.StringVar(&o.version, "version", version.Version, "release")
	flag.StringVar(&o.output, "output", "", "directory of the release, which contains the images")
	flag.StringVar(&o.man, "man", "", "directory of the manual pages, which make man writes")
	flag.StringVar(&o.key, "key", "", "private key that signs the checksums; no signature without a key")
	flag.Int64Var(&o.seconds, "date", 0, "date of the SBOM, in seconds since 1970")
	flag.Func("build", "directory of a build; repeat for each architecture", func(dir string) error {
		o.builds = append(o.builds, dir)
		return nil
	})
	flag.Func("client", "vgpuctl for a system other than Linux; repeat for each system and architecture", func(program string) error {
		o.clients = append(o.clients, program)
		return nil
	})
	only := flag.Bool("check", false, "check version and key, and write nothing")
	flag.Parse()
	err := check(o)
	if err == nil && !*only {
		err = release(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// check returns an error for a version or key with which no release is possible.
func check(o options) error {
	v, err := semver.ParseSemantic(o.version)
	if err != nil || v.String() != o.version || v.BuildMetadata() != "" {
		return fmt.Errorf("release %q: the chart and the images need a semantic version without build metadata: set VERSION=0.1.0, for instance", o.version)
	}
	if o.key == "" {
		return nil
	}
	return sign(o.key, os.DevNull, os.DevNull)
}

// release writes all files. The bundle contains the earlier files, and the checksums cover the bundle.
func release(o options) error {
	for _, step := range []struct {
		name  string
		write func(options) error
	}{
		{"chart", writeChart}, {"manifests", writeManifests}, {"programs", writePrograms},
		{"krew's manifest", writeKrew}, {"SBOM", writeSBOM}, {"bundle", writeBundle}, {"checksums", writeChecksums},
		{"signature", writeSignature},
	} {
		if err := step.write(o); err != nil {
			return fmt.Errorf("write the %s of release %s: %w", step.name, o.version, err)
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

// writeSignature signs the checksums.
func writeSignature(o options) error {
	if o.key == "" {
		return nil
	}
	sums := filepath.Join(o.output, checksums)
	return sign(o.key, sums, sums+".sig")
}

// sign writes the signature of a file by a private key.
func sign(key, file, signature string) error {
	cmd := exec.Command("openssl", "dgst", "-sha256", "-sign", key, "-out", signature, file)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("sign with the private key %s (openssl ecparam -genkey -name prime256v1 -noout creates a key): %w: %s", key, err, bytes.TrimSpace(out))
	}
	return nil
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
