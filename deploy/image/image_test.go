// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	_ "runtime/cgo" // links the test with glibc, as the agent
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// testBuild returns a build directory in which this test's executable replaces
// the programs. Like the agent, the executable is a Go program linked with glibc.
func testBuild(t *testing.T) options {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, p := range binaries {
		write(t, filepath.Join(dir, "bin", p), program)
	}
	for _, l := range libraries {
		write(t, filepath.Join(dir, "lib", l), []byte("the interposer as "+l))
	}
	return options{build: dir, source: "../..", version: "1.2.3", revision: "0123456789abcdef"}
}

func write(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, content, 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestImage(t *testing.T) {
	o := testBuild(t)
	archive := filepath.Join(t.TempDir(), "image.tar")
	if err := makeImage(agentSpec, o, archive); err != nil {
		t.Fatal(err)
	}
	t.Run("docker load finds the image by name", func(t *testing.T) { checkDocker(t, archive) })
	t.Run("content", func(t *testing.T) { checkContent(t, archive) })
	t.Run("the same build makes the same archive", func(t *testing.T) {
		again := filepath.Join(t.TempDir(), "again.tar")
		if err := makeImage(agentSpec, o, again); err != nil {
			t.Fatal(err)
		}
		a, err := os.ReadFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(again)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Error("two archives of one build differ")
		}
	})
}

// checkDocker reads the archive by manifest.json, as Docker does.
func checkDocker(t *testing.T, archive string) {
	tag, err := name.NewTag("ghcr.io/nri-vgpu/nri-vgpu:1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(archive, &tag)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	for label, want := range map[string]string{"version": "1.2.3", "revision": "0123456789abcdef"} {
		if got := config.Config.Labels["org.opencontainers.image."+label]; got != want {
			t.Errorf("label %s is %q, want %q", label, got, want)
		}
	}
}

func checkContent(t *testing.T, archive string) {
	entries := map[string]string{}
	var m dockerManifest
	m, err := describe(archive, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, layer := range m.Layers {
		readLayer(t, archive, layer, entries)
	}
	for _, want := range []string{
		"usr/local/nri-vgpu/bin/nri-vgpu",
		"usr/local/nri-vgpu/bin/extended-resource-patcher",
		"usr/local/nri-vgpu/bin/nri-vgpu-guard",
		"usr/local/nri-vgpu/bin/nri-vgpu-view",
		"usr/local/nri-vgpu/bin/vgpuctl",
		"usr/local/nri-vgpu/lib/libcuda.so.1",
		"usr/local/nri-vgpu/lib/libnvidia-ml.so.1",
		"usr/local/nri-vgpu/lib/vgpu-context",
		"usr/local/nri-vgpu/lib/vgpu-workload",
		"etc/nri-vgpu/config.toml",
		"usr/share/doc/nri-vgpu/LICENSE",
	} {
		if entries[want] == "" {
			t.Errorf("%s is missing or empty", want)
		}
	}
	names := make([]string, 0, len(entries))
	for n := range entries {
		names = append(names, filepath.Base(n))
	}
	loader := map[string]string{"amd64": "ld-linux-x86-64.so.2", "arm64": "ld-linux-aarch64.so.1"}[runtime.GOARCH]
	for _, want := range append([]string{"libc.so.6", loader}, nvmlNeeds...) {
		if !slices.Contains(names, want) {
			t.Errorf("%s is missing", want)
		}
	}
	if !strings.Contains(entries["etc/passwd"], "nonroot:x:65532:") {
		t.Error("the patcher's user is not in passwd")
	}
	notices := entries["usr/share/doc/nri-vgpu/THIRD-PARTY-NOTICES"]
	for _, want := range []string{"Go standard library", "github.com/google/go-containerregistry", "libc6", "GNU LESSER GENERAL PUBLIC LICENSE"} {
		if !strings.Contains(notices, want) {
			t.Errorf("the notices lack %q", want)
		}
	}
}

func readLayer(t *testing.T, archive, layer string, entries map[string]string) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := tar.NewReader(f)
	for header, err := r.Next(); err == nil && header.Name != layer; header, err = r.Next() {
	}
	z, err := gzip.NewReader(r)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		entries[header.Name] = string(content)
	}
}

// TestBuildsContainNoPaths checks that no built program or library contains a path in the clone. Then,
// clones at other paths build equal files.
func TestBuildsContainNoPaths(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, name := range binaries {
		files = append(files, filepath.Join(root, "build", "bin", name))
	}
	for _, name := range libraries {
		files = append(files, filepath.Join(root, "build", "lib", name))
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatalf("%v: run make build", err)
		}
		for _, dir := range []string{"build", "cmd", "interposer", "internal", "test"} {
			if path := filepath.Join(root, dir); bytes.Contains(content, []byte(path)) {
				t.Errorf("%s contains the path %s", file, path)
			}
		}
	}
}

// newestGlibc is the minor version of glibc 2 that vgpuctl run and verify need, as
// docs/how-to/verify.md states.
const newestGlibc = 34

// TestHelpersRunWithOlderGlibc checks that the programs and libraries beside vgpuctl need no newer
// glibc than documented, also if a newer system builds them.
func TestHelpersRunWithOlderGlibc(t *testing.T) {
	for _, name := range libraries {
		f, err := elf.Open(filepath.Join("../../build/lib", name))
		if err != nil {
			t.Fatalf("%v: run make build", err)
		}
		defer f.Close()
		symbols, err := f.ImportedSymbols()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range symbols {
			minor, ok := strings.CutPrefix(s.Version, "GLIBC_2.")
			minor, _, _ = strings.Cut(minor, ".")
			if n, err := strconv.Atoi(minor); ok && (err != nil || n > newestGlibc) {
				t.Errorf("%s needs %s of %s", name, s.Name, s.Version)
			}
		}
	}
	guide, err := os.ReadFile("../../docs/how-to/verify.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("glibc 2.%d", newestGlibc); !strings.Contains(string(guide), want) {
		t.Errorf("the guide does not name %s", want)
	}
}

func TestImageRefuses(t *testing.T) {
	tests := []struct {
		name   string
		damage func(o options) error
		want   string
	}{
		{"a program is missing", func(o options) error { return os.Remove(filepath.Join(o.build, "bin", "vgpuctl")) }, "vgpuctl"},
		{"a library is missing", func(o options) error { return os.Remove(filepath.Join(o.build, "lib", "libcuda.so.1")) }, "libcuda.so.1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := testBuild(t)
			if err := tt.damage(o); err != nil {
				t.Fatal(err)
			}
			archive := filepath.Join(t.TempDir(), "image.tar")
			err := makeImage(agentSpec, o, archive)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v, want it to name %s", err, tt.want)
			}
			if _, err := os.Stat(archive); err == nil {
				t.Error("the failed command wrote an archive")
			}
		})
	}
}
