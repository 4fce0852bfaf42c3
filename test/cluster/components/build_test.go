// SPDX-License-Identifier: Apache-2.0

package components

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// hello writes a tools module whose only program has this source.
func hello(t *testing.T, source string) (*Builder, Module) {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, "tools", "hello")
	files := map[string]string{
		"go.mod":        "module example.com/hello\n\ngo 1.26.0\n",
		"go.sum":        "",
		"greet/main.go": source,
	}
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m := Module{Name: "hello", Programs: []Program{{"hi", "example.com/hello/greet"}}}
	return &Builder{Root: root, Cache: filepath.Join(root, "cache")}, m
}

func TestBuildUsesCache(t *testing.T) {
	b, m := hello(t, "package main\n\nfunc main() {}\n")
	var out bytes.Buffer
	b.Out = &out
	m.FirstBuild = 3 * time.Minute
	first, err := b.Build(context.Background(), []Module{m})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(first["hi"]); err != nil {
		t.Fatalf("the program is not where Build reports it: %v", err)
	}
	if !strings.Contains(out.String(), "building 1 of 1 components from their sources: about 3m0s in all") {
		t.Errorf("a build has no estimate: %q", out.String())
	}
	if !strings.Contains(out.String(), "building hello") {
		t.Errorf("a long build printed only %q", out.String())
	}
	out.Reset()
	second, err := b.Build(context.Background(), []Module{m})
	if err != nil {
		t.Fatal(err)
	}
	if out.Len() != 0 || second["hi"] != first["hi"] {
		t.Errorf("second build returned %v and printed %q, want the cached program and silence", second, out.String())
	}
}

func TestBuildErrorShowsCompiler(t *testing.T) {
	b, m := hello(t, "package main\n\nfunc main() { missing() }\n")
	_, err := b.Build(context.Background(), []Module{m})
	if err == nil || !strings.Contains(err.Error(), "undefined: missing") {
		t.Fatalf("error %v does not contain the compiler's output", err)
	}
	logs, _ := filepath.Glob(filepath.Join(b.Cache, "*.log"))
	if len(logs) != 1 {
		t.Errorf("logs kept: %v, want one", logs)
	}
}

func TestCacheKeyFollowsInputs(t *testing.T) {
	b, m := hello(t, "package main\n")
	source := filepath.Join(b.Root, "tools", "hello")
	key := func(goVersion string, m Module) string {
		k, err := cacheKey(source, goVersion, m)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	base := key("go1.26.0", m)
	stamped := m
	stamped.LDFlags = "-X main.version=2"
	if key("go1.26.0", stamped) == base {
		t.Error("key ignores the linker's flags")
	}
	if key("go1.27.0", m) == base {
		t.Error("key ignores the Go version")
	}
	if err := os.WriteFile(filepath.Join(source, "go.sum"), []byte("x\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if key("go1.26.0", m) == base {
		t.Error("key ignores go.sum")
	}
}

// TestModulesMatchTools checks that the version stamped into the binaries is the built version.
func TestModulesMatchTools(t *testing.T) {
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	root, err := FindRoot(wd)
	if err != nil {
		t.Fatal(err)
	}
	modules := append(Modules(), Helm(), Crane(), Prometheus(), Kwok(), DevicePlugin())
	for line := range ContainerdVersions {
		if m, err := ContainerdModule(line); err == nil {
			modules = append(modules, m)
		}
	}
	for line := range KubeletVersions {
		if m, err := KubeletModule(line); err == nil {
			modules = append(modules, m)
		}
	}
	versions := map[string]string{
		"kubernetes": "k8s.io/kubernetes " + KubernetesVersion,
		"helm":       "helm.sh/helm/v4 " + HelmVersion,
		"containerd": "github.com/containerd/containerd/v2 " + ContainerdVersions[DefaultContainerd],
	}
	for line, version := range ContainerdVersions {
		module := "github.com/containerd/containerd/v2 "
		if line == "1.7" {
			module = "github.com/containerd/containerd "
		}
		versions["containerd-"+line] = module + version
	}
	for line, version := range KubeletVersions {
		versions["kubernetes-"+line] = "k8s.io/kubernetes " + version
	}
	for _, m := range modules {
		content, err := os.ReadFile(filepath.Join(root, "tools", m.Name, "go.mod"))
		if err != nil {
			t.Error(err)
			continue
		}
		for _, p := range m.Programs {
			if !strings.Contains(string(content), p.Package+"\n") {
				t.Errorf("tools/%s/go.mod does not name %s as a tool", m.Name, p.Package)
			}
		}
		if want := versions[m.Name]; !strings.Contains(string(content), want) {
			t.Errorf("tools/%s/go.mod does not require %s, which its programs claim to be", m.Name, want)
		}
	}
}

func TestFindRootOutside(t *testing.T) {
	if _, err := FindRoot("/"); err == nil {
		t.Error("found a checkout at /")
	}
}
