// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// unpack extracts an archive's layout and opens it.
func unpack(t *testing.T, archive string) layout.Path {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		target := filepath.Join(dir, header.Name)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(target, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p, err := layout.FromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestBuild(t *testing.T) {
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprintf("plain=%t", plain), func(t *testing.T) { testBuild(t, plain) })
	}
}

func testBuild(t *testing.T, plain bool) {
	archive := filepath.Join(t.TempDir(), "deep", "image.tar")
	spec := Spec{
		Name: "localhost/a/b:c",
		Files: []File{
			{Path: "/etc/greeting", Content: []byte("hello")},
			{Path: "/usr/bin/x", Content: []byte("x"), Mode: 0o755},
			{Path: "/bin", Link: "usr/bin"},
			{Path: "/tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
		},
		Env:        []string{"A=1"},
		Entrypoint: []string{"/bin/x"},
		Plain:      plain,
	}
	if err := Build(archive, spec); err != nil {
		t.Fatal(err)
	}
	if name, err := Name(archive); err != nil || name != spec.Name {
		t.Errorf("the archive's image is %q, %v", name, err)
	}
	index, err := unpack(t, archive).ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if got := manifest.Manifests[0].Annotations; got[containerdName] != "localhost/a/b:c" || got[ociRefName] != "c" {
		t.Errorf("annotations %v do not name the image", got)
	}
	img, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"A=1"}, config.Config.Env); diff != "" {
		t.Error(diff)
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	if kind, err := layers[0].MediaType(); err != nil || (kind == types.OCIUncompressedLayer) != plain {
		t.Errorf("the layer is a %s, %v", kind, err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	got := listTar(t, content)
	want := map[string]string{
		"bin": "-> usr/bin", "etc/": "755", "etc/greeting": "644 hello", "tmp/": "1777",
		"usr/": "755", "usr/bin/": "755", "usr/bin/x": "755 x",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("layer (-want +got):\n%s", diff)
	}
}

func listTar(t *testing.T, content io.Reader) map[string]string {
	t.Helper()
	entries := map[string]string{}
	for r := tar.NewReader(content); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return entries
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if header.Typeflag == tar.TypeSymlink {
			entries[header.Name] = "-> " + header.Linkname
			continue
		}
		entries[header.Name] = strings.TrimSpace(strconv.FormatInt(header.Mode, 8) + " " + string(body))
	}
}

func TestBuildIsReproducible(t *testing.T) {
	dir := t.TempDir()
	files, err := HostPrograms("ls", "cat")
	if err != nil {
		t.Fatal(err)
	}
	var contents [2][]byte
	for i := range contents {
		archive := filepath.Join(dir, "image.tar")
		if err := Build(archive, Spec{Name: "localhost/x:y", Files: append(BaseLayout(), files...)}); err != nil {
			t.Fatal(err)
		}
		if contents[i], err = os.ReadFile(archive); err != nil {
			t.Fatal(err)
		}
	}
	if string(contents[0]) != string(contents[1]) {
		t.Error("two builds of the same files differ")
	}
}

func TestHostProgramsBringTheirLibraries(t *testing.T) {
	files, err := HostPrograms("ls")
	if err != nil {
		t.Fatal(err)
	}
	paths := map[string]bool{}
	for _, f := range files {
		paths[f.Path] = true
	}
	if !paths["/usr/bin/ls"] {
		t.Errorf("no /usr/bin/ls in %v", paths)
	}
	var libc, linker bool
	for p := range paths {
		libc = libc || strings.HasSuffix(p, "/libc.so.6")
		linker = linker || strings.Contains(filepath.Base(p), "ld-linux")
		if strings.HasPrefix(p, "/lib") {
			t.Errorf("%s is below a link in the image", p)
		}
	}
	if !libc || !linker {
		t.Errorf("libc %v, dynamic linker %v in %v", libc, linker, paths)
	}
}

func TestErrors(t *testing.T) {
	archive := filepath.Join(t.TempDir(), "image.tar")
	for name, spec := range map[string]Spec{
		"relative path":  {Name: "x:y", Files: []File{{Path: "etc/x"}}},
		"missing source": {Name: "x:y", Files: []File{{Path: "/x", Source: "/does/not/exist"}}},
	} {
		if err := Build(archive, spec); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := HostPrograms("no-such-program"); err == nil {
		t.Error("no error for a program that is not there")
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(archive), "*")); len(left) != 0 {
		t.Errorf("failed builds left %v", left)
	}
}

func TestBuildPause(t *testing.T) {
	archive := filepath.Join(t.TempDir(), "pause.tar")
	if err := BuildPause(context.Background(), archive, "localhost/pause:test"); err != nil {
		t.Fatal(err)
	}
	unpack(t, archive)
}

func TestResolverSkipsScripts(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	files, err := Programs(map[string]string{"/usr/bin/script": script})
	if err != nil || len(files) != 1 {
		t.Errorf("got %v, %v", files, err)
	}
	r := resolver{dirs: []string{t.TempDir()}}
	if _, err := r.find("libmissing.so.1", elf.EM_X86_64); err == nil {
		t.Error("found a library in an empty directory")
	}
}

func TestBuildIndex(t *testing.T) {
	archive := filepath.Join(t.TempDir(), "image.tar")
	var specs []Spec
	for _, architecture := range []string{"amd64", "arm64"} {
		specs = append(specs, Spec{
			Name: "localhost/a/b:c", Architecture: architecture,
			Files: []File{{Path: "/etc/architecture", Content: []byte(architecture)}},
		})
	}
	if err := BuildIndex(archive, specs...); err != nil {
		t.Fatal(err)
	}
	if name, err := Name(archive); err != nil || name != "localhost/a/b:c" {
		t.Errorf("the archive's image is %q, %v", name, err)
	}
	outer, err := unpack(t, archive).ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	list, err := outer.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	index, err := outer.ImageIndex(list.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range manifest.Manifests {
		img, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, m.Platform.String()+" "+config.Architecture)
	}
	if diff := cmp.Diff([]string{"linux/amd64 amd64", "linux/arm64 arm64"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestLibraryPath(t *testing.T) {
	for file, want := range map[string]string{
		"/lib/x86_64-linux-gnu/libc.so.6":           "/usr/lib/x86_64-linux-gnu/libc.so.6",
		"/usr/aarch64-linux-gnu/lib/libc.so.6":      "/usr/lib/aarch64-linux-gnu/libc.so.6",
		"/usr/lib/aarch64-linux-gnu/libc.so.6":      "/usr/lib/aarch64-linux-gnu/libc.so.6",
		"/opt/aarch64-linux-gnu/lib/libsomething.1": "/opt/aarch64-linux-gnu/lib/libsomething.1",
	} {
		if got := libraryPath(file); got != want {
			t.Errorf("%s is at %s, want %s", file, got, want)
		}
	}
}
