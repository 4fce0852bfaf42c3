// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	_ "runtime/cgo" // links the test with glibc, as the agent
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"sigs.k8s.io/yaml"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

const testVersion = "1.2.3"

// platforms are the systems and architectures of kubectl's plugin.
var platforms = []string{"linux_amd64", "linux_arm64", "darwin_amd64", "darwin_arm64", "windows_amd64", "windows_arm64"}

// testOptions describes a release, in which this test's executable replaces the programs.
func testOptions(t *testing.T) options {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	build := t.TempDir()
	for _, program := range released {
		link(t, self, filepath.Join(build, "bin", program))
	}
	if err := os.Mkdir(filepath.Join(build, "lib"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Concat(paths.Libraries, paths.Helpers) {
		if err := os.WriteFile(filepath.Join(build, "lib", name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o := options{source: "../..", version: testVersion, output: t.TempDir(), builds: []string{build}, man: t.TempDir(), seconds: 1}
	for _, name := range []string{"kubectl-vgpu.1", "kubectl-vgpu-get-gpus.1", "vgpuctl.1", "vgpuctl-run.1", "mgctl.1"} {
		if err := os.WriteFile(filepath.Join(o.man, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// krew's manifest names an archive for each platform.
	for _, platform := range platforms {
		if err := o.write("kubectl-vgpu_"+platform+".tar.gz", nil); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

func link(t *testing.T, target, name string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.Symlink(target, name)); err != nil {
		t.Fatal(err)
	}
}

// testRelease writes the release of testOptions.
func testRelease(t *testing.T) options {
	t.Helper()
	o := testOptions(t)
	if err := release(o); err != nil {
		t.Fatal(err)
	}
	return o
}

func read(t *testing.T, o options, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(o.output, name))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestReleasesOfOneBuildAreEqual(t *testing.T) {
	first, second := testRelease(t), testRelease(t)
	if a, b := read(t, first, checksums), read(t, second, checksums); !bytes.Equal(a, b) {
		t.Errorf("the checksums differ:\n%s\n%s", a, b)
	}
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", checksums)
	check.Dir = first.output
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("sha256sum: %v\n%s", err, out)
	}
	files, err := first.files()
	if err != nil {
		t.Fatal(err)
	}
	if covered := strings.Count(string(read(t, first, checksums)), "\n"); covered != len(files)-1 {
		t.Errorf("the checksums cover %d of %d files", covered, len(files)-1)
	}
}

func TestReleaseRefusesVersions(t *testing.T) {
	for _, version := range []string{"", "1.2", "v1.2.3", "1.2.3+build", "01.2.3", "1.2.3-", "1.2.3 ", "../../x", "main"} {
		if err := check(options{version: version}); err == nil || !strings.Contains(err.Error(), "semantic version") {
			t.Errorf("version %q: the error is %v", version, err)
		}
	}
}

func TestReleaseAcceptsVersions(t *testing.T) {
	for _, version := range []string{"0.1.0", "1.2.3-rc.1", "1.2.3-dev"} {
		if err := check(options{version: version}); err != nil {
			t.Error(err)
		}
	}
}

func TestReleaseRefusesKeys(t *testing.T) {
	none := filepath.Join(t.TempDir(), "private.pem")
	for _, key := range []string{none, "release_test.go"} {
		if err := check(options{version: testVersion, key: key}); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("key %s: the error is %v", key, err)
		}
	}
}

// TestSignature makes a key and verifies a release by the documented commands.
func TestSignature(t *testing.T) {
	const page = "docs/how-to/release.md"
	o := testOptions(t)
	run := func(commands string) error {
		cmd := exec.CommandContext(t.Context(), "sh", "-e", "-c", commands)
		cmd.Dir = o.output
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", commands, err, out)
		}
		return nil
	}
	keys := t.TempDir()
	makeKeys := documented.Commands(t, page, "Make a release")[0]
	if err := run("cd " + keys + "\n" + makeKeys); err != nil {
		t.Fatal(err)
	}
	o.key = filepath.Join(keys, "private.pem")
	if err := errors.Join(check(o), release(o)); err != nil {
		t.Fatal(err)
	}
	verify := strings.ReplaceAll(documented.Commands(t, page, "Verify a release")[0], "public.pem", filepath.Join(keys, "public.pem"))
	if err := run(verify); err != nil {
		t.Error(err)
	}
	if err := o.write("vgpu.yaml", []byte("changed")); err != nil {
		t.Fatal(err)
	}
	if run(verify) == nil {
		t.Error("a changed file passes")
	}
}

// entries returns the content of each file in a program's archive for this machine, and the names of
// the files that can be executed.
func entries(t *testing.T, o options, program string) (contents map[string]string, executable []string) {
	t.Helper()
	compressed, err := gzip.NewReader(bytes.NewReader(read(t, o, program+"_linux_"+runtime.GOARCH+".tar.gz")))
	if err != nil {
		t.Fatal(err)
	}
	contents = map[string]string{}
	for r := tar.NewReader(compressed); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return contents, executable
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		contents[header.Name] = string(content)
		if header.Mode == 0o755 {
			executable = append(executable, header.Name)
		}
	}
}

// TestArchivesOfPrograms checks that the archives contain manual pages and the licences of the linked
// modules, and that vgpuctl has the interposer.
func TestArchivesOfPrograms(t *testing.T) {
	const man = "share/man/man1/"
	o := testRelease(t)
	plugin, executable := entries(t, o, "kubectl-vgpu")
	want := []string{"LICENSE", "THIRD-PARTY-NOTICES", "kubectl-vgpu", man + "kubectl-vgpu-get-gpus.1", man + "kubectl-vgpu.1"}
	if names := slices.Sorted(maps.Keys(plugin)); !slices.Equal(names, want) || !slices.Equal(executable, []string{"kubectl-vgpu"}) {
		t.Errorf("the plugin's archive contains %v, of which %v can be executed, want %v", names, executable, want)
	}
	vgpuctl, _ := entries(t, o, "vgpuctl")
	for _, page := range []string{"vgpuctl.1", "vgpuctl-run.1"} {
		if vgpuctl[man+page] != page {
			t.Errorf("vgpuctl's archive lacks %s%s", man, page)
		}
	}
	for _, name := range slices.Concat(paths.Libraries, paths.Helpers) {
		if vgpuctl["lib/"+name] != name {
			t.Errorf("vgpuctl's archive lacks lib/%s", name)
		}
	}
	for program, contents := range map[string]map[string]string{"kubectl-vgpu": plugin, "vgpuctl": vgpuctl} {
		if !strings.Contains(contents["LICENSE"], "Apache License") {
			t.Errorf("the archive of %s lacks nri-vgpu's licence", program)
		}
		for _, want := range []string{"Go standard library", "github.com/spdx/tools-golang v", "k8s.io/apimachinery v"} {
			if !strings.Contains(contents["THIRD-PARTY-NOTICES"], want) {
				t.Errorf("the notices of %s lack %q", program, want)
			}
		}
	}
}

// TestReleaseNeedsManualPages checks that no release lacks the manual pages of a program.
func TestReleaseNeedsManualPages(t *testing.T) {
	o := testOptions(t)
	o.man = t.TempDir()
	if err := release(o); err == nil || !strings.Contains(err.Error(), "run make man") {
		t.Errorf("without manual pages, the error is %v", err)
	}
}

func TestKrewsManifest(t *testing.T) {
	o := testRelease(t)
	var manifest struct {
		Spec struct {
			Version   string
			Platforms []struct {
				URI, SHA256, Bin string
				Selector         struct{ MatchLabels struct{ OS, Arch string } }
				Files            []struct{ From, To string }
			}
		}
	}
	if err := yaml.Unmarshal(read(t, o, "vgpu.yaml"), &manifest); err != nil {
		t.Fatal(err)
	}
	if manifest.Spec.Version != "v1.2.3" || len(manifest.Spec.Platforms) != len(platforms) {
		t.Errorf("the manifest is %+v", manifest)
	}
	for i, p := range manifest.Spec.Platforms {
		const prefix = "https://github.com/nri-vgpu/nri-vgpu/releases/download/v1.2.3/"
		labels := p.Selector.MatchLabels
		name, bin := "kubectl-vgpu_"+platforms[i]+".tar.gz", "kubectl-vgpu"
		if labels.OS == "windows" {
			bin += ".exe"
		}
		if p.URI != prefix+name || labels.OS+"_"+labels.Arch != platforms[i] || p.Bin != bin {
			t.Errorf("a platform is %+v", p)
		}
		var installed []string
		for _, f := range p.Files {
			installed = append(installed, f.From)
		}
		if want := []string{bin, "LICENSE", "THIRD-PARTY-NOTICES"}; !slices.Equal(installed, want) {
			t.Errorf("krew installs %v, want %v", installed, want)
		}
		if sum, err := o.sum(name); err != nil || sum != p.SHA256 {
			t.Errorf("the checksum of %s is %s, want %s, %v", name, p.SHA256, sum, err)
		}
	}
}

func TestSBOM(t *testing.T) {
	o := testRelease(t)
	document, err := json.Read(bytes.NewReader(read(t, o, "nri-vgpu-1.2.3.spdx.json")))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range document.Packages {
		names = append(names, p.PackageName)
	}
	for _, want := range []string{"github.com/nri-vgpu/nri-vgpu", "stdlib", "github.com/spdx/tools-golang", "libcuda.so.1", "vgpu-context", "libc6"} {
		if !slices.Contains(names, want) {
			t.Errorf("the SBOM lacks %s", want)
		}
	}
	if len(document.Relationships) != len(names) {
		t.Errorf("%d relationships for %d packages", len(document.Relationships), len(names))
	}
	ids := map[spdx.ElementID]bool{}
	for _, p := range document.Packages {
		if ids[p.PackageSPDXIdentifier] {
			t.Errorf("two packages have the identifier %s", p.PackageSPDXIdentifier)
		}
		ids[p.PackageSPDXIdentifier] = true
	}
}

// TestChartFromARegistry pushes the chart to a registry by helm, and renders the chart from there.
func TestChartFromARegistry(t *testing.T) {
	o := testRelease(t)
	root, err := filepath.Abs(o.source)
	if err != nil {
		t.Fatal(err)
	}
	program, err := components.HelmProgram(t.Context(), root, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(registry.New())
	defer server.Close()
	home := t.TempDir()
	helm := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), program, append(args, "--plain-http")...)
		cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home, "NO_PROXY=*", "no_proxy=*")
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, &errs)
		}
		return string(out)
	}
	charts := "oci://" + strings.TrimPrefix(server.URL, "http://") + "/charts"
	helm("push", filepath.Join(o.output, "nri-vgpu-1.2.3.tgz"), charts)
	rendered := helm("template", "nri-vgpu", charts+"/nri-vgpu", "--version", testVersion, "--set", "manifest=install")
	fromSource := string(read(t, o, "nri-vgpu.yaml"))
	const image = "image: ghcr.io/nri-vgpu/nri-vgpu:1.2.3\n"
	if n := strings.Count(rendered, image); n == 0 || n != strings.Count(fromSource, image) {
		t.Errorf("%d containers of the chart and %d of the manifest have the release's image", n, strings.Count(fromSource, image))
	}
	if strings.Contains(rendered+fromSource, "0.1.0-dev") {
		t.Error("the version of the source tree remains")
	}
	if !strings.Contains(rendered, "slots_per_gpu") {
		t.Error("the chart lacks the files behind links")
	}
}
