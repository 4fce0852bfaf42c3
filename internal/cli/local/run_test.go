// SPDX-License-Identifier: Apache-2.0

package local

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/internal/version"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

func TestEnvironment(t *testing.T) {
	devices := []limits.Device{{UUID: "GPU-a"}, {UUID: "GPU-b"}}
	ours := []string{"NRI_VGPU_DIR=/g/lab", "CUDA_VISIBLE_DEVICES=GPU-a,GPU-b"}
	tests := []struct {
		name string
		env  []string
		want []string
	}{
		{"plain", []string{"HOME=/root", "EMPTY="},
			[]string{"HOME=/root", "EMPTY=", "LD_PRELOAD=/l/libcuda.so.1:/l/libnvidia-ml.so.1"}},
		{"the user's libraries come after", []string{"LD_PRELOAD=/x.so /y.so"},
			[]string{"LD_PRELOAD=/l/libcuda.so.1:/l/libnvidia-ml.so.1:/x.so /y.so"}},
		{"an empty preload", []string{"LD_PRELOAD="},
			[]string{"LD_PRELOAD=/l/libcuda.so.1:/l/libnvidia-ml.so.1"}},
		{"CUDA's devices and old pages are replaced", []string{"CUDA_VISIBLE_DEVICES=1", "NRI_VGPU_DIR=/x", "A=b=c"},
			[]string{"A=b=c", "LD_PRELOAD=/l/libcuda.so.1:/l/libnvidia-ml.so.1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Environment(tt.env, "/l", "/g/lab", devices)
			if diff := cmp.Diff(append(tt.want, ours...), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestLibraryDirs(t *testing.T) {
	env := ""
	getenv := func(string) string { return env }
	want := []string{"/a/lib", "/a/bin/lib", "/a/bin", "/usr/local/nri-vgpu/lib", "/opt/nri-vgpu/" + version.Version}
	if diff := cmp.Diff(want, LibraryDirs("/a/bin/vgpuctl", getenv)); diff != "" {
		t.Error(diff)
	}
	env = "/mine"
	if diff := cmp.Diff([]string{"/mine"}, LibraryDirs("/a/bin/vgpuctl", getenv)); diff != "" {
		t.Error(diff)
	}
}

func TestFindLibraries(t *testing.T) {
	const ours, driver = "\x7fELF…NRI_VGPU_DIR…", "\x7fELF…NVIDIA…"
	dir := func(name string, files map[string]string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		for file, content := range files {
			if err := os.WriteFile(filepath.Join(path, file), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return path
	}
	whole := map[string]string{"libcuda.so.1": ours, "libnvidia-ml.so.1": ours}
	good := dir("lib", whole)
	nvidia := dir("nvidia", map[string]string{"libcuda.so.1": driver, "libnvidia-ml.so.1": driver})
	half := dir("half", map[string]string{"libcuda.so.1": ours, "libnvidia-ml.so.1": driver})
	colon := dir("a:b", whole)

	tests := []struct {
		name string
		dirs []string
		want string
		err  string
	}{
		{"the first that has them", []string{"/nonexistent", good}, good, ""},
		{"the driver is passed over", []string{nvidia, good}, good, ""},
		{"half of them", []string{half, good}, "", "lacks libnvidia-ml.so.1 of nri-vgpu's libraries"},
		{"a name that cannot be preloaded", []string{colon}, "", "has a colon or space"},
		{"nowhere", []string{nvidia}, "", "nri-vgpu's libraries are not in " + nvidia + "; set NRI_VGPU_LIB"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := FindLibraries(tt.dirs)
			if got != tt.want || tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("got %q, %v; want %q, %q", got, err, tt.want, tt.err)
			}
		})
	}
}

func TestNotYetLimited(t *testing.T) {
	dir, env := t.TempDir(), ""
	getenv := func(string) string { return env }
	if err := notYetLimited(dir, getenv); err != nil {
		t.Error(err)
	}
	env = "/run/lab"
	if err := notYetLimited(dir, getenv); err == nil || !strings.Contains(err.Error(), "/run/lab") {
		t.Errorf("got %v in a run", err)
	}
	if err := limits.Create(dir, ask(1<<30)); err != nil {
		t.Fatal(err)
	}
	if err := notYetLimited(dir, func(string) string { return "" }); err == nil || !strings.Contains(err.Error(), "Kubernetes") {
		t.Errorf("got %v in a container", err)
	}
}
