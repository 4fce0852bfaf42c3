// SPDX-License-Identifier: Apache-2.0

package install

import (
	"debug/elf"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/install/standin"
	"github.com/nri-vgpu/nri-vgpu/internal/machine"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
)

func source(t *testing.T, cuda string) string {
	t.Helper()
	dir := t.TempDir()
	contents := map[string]string{"lib/libcuda.so.1": cuda, "lib/libnvidia-ml.so.1": "nvml", "bin/vgpuctl": "tool"}
	for _, name := range paths.Helpers {
		contents["lib/"+name] = name
	}
	for name, content := range contents {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestInstall(t *testing.T) {
	from, dir := source(t, "cuda"), filepath.Join(t.TempDir(), "opt")
	target, err := Install(from, dir, "1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(dir, "1.2.3"); target != want {
		t.Errorf("installed in %s, want %s", target, want)
	}
	for name, want := range map[string]struct {
		content string
		mode    os.FileMode
	}{
		"libcuda.so.1":      {"cuda", 0o755},
		"libnvidia-ml.so.1": {"nvml", 0o755},
		"vgpuctl":           {"tool", 0o755},
		"vgpu-workload":     {"vgpu-workload", 0o755},
		"ld.so.preload": {"/usr/local/nri-vgpu/preload/$PLATFORM/libcuda.so.1\n/usr/local/nri-vgpu/preload/$PLATFORM/libnvidia-ml.so.1\n" +
			"/usr/local/nri-vgpu/lib/libcuda.so.1\n/usr/local/nri-vgpu/lib/libnvidia-ml.so.1\n", 0o644},
		"preload/" + machine.Platforms32[0] + "/libcuda.so.1": {string(standin.Library(elf.ELFCLASS32, "/usr/local/nri-vgpu/lib/libcuda.so.1")), 0o755},
	} {
		path := filepath.Join(target, name)
		content, err := os.ReadFile(path)
		if err != nil || string(content) != want.content {
			t.Errorf("%s has %q, %v", name, content, err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want.mode {
			t.Errorf("%s has mode %v, %v", name, info.Mode(), err)
		}
	}
	for _, name := range []string{"", "preload", "preload/" + machine.Platforms[0], "preload/" + machine.Platforms32[0]} {
		if info, err := os.Stat(filepath.Join(target, name)); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("the directory %q has mode %v, %v", name, info.Mode(), err)
		}
	}
	for _, name := range append([]string{""}, machine.Platforms...) {
		link, err := os.Readlink(filepath.Join(target, "preload", name, "libnvidia-ml.so.1"))
		if err != nil || link != "/usr/local/nri-vgpu/lib/libnvidia-ml.so.1" {
			t.Errorf("for %q a link leads to %q, %v", name, link, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("something else is left: %v, %v", entries, err)
	}
}

func TestInstallAgainChangesNothing(t *testing.T) {
	from, dir := source(t, "cuda"), t.TempDir()
	target, err := Install(from, dir, "1")
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(filepath.Join(target, paths.CUDALibrary))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Install(from, dir, "1"); err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(filepath.Join(target, paths.CUDALibrary))
	if err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
		t.Error("a library under running containers was touched")
	}
}

func TestInstallNeverRewrites(t *testing.T) {
	dir := t.TempDir()
	target, err := Install(source(t, "old"), dir, "1")
	if err != nil {
		t.Fatal(err)
	}
	_, err = Install(source(t, "new"), dir, "1")
	if !errors.Is(err, ErrDiffers) || !strings.Contains(err.Error(), "another version") {
		t.Errorf("got %v", err)
	}
	content, err := os.ReadFile(filepath.Join(target, paths.CUDALibrary))
	if err != nil || string(content) != "old" {
		t.Errorf("got %q, %v", content, err)
	}
	if _, err := Install(source(t, "new"), dir, "2"); err != nil {
		t.Errorf("another version: %v", err)
	}
	link := filepath.Join(target, paths.StandIns, machine.Platforms[0], paths.CUDALibrary)
	if err := errors.Join(os.Remove(link), os.Symlink("/elsewhere", link)); err != nil {
		t.Fatal(err)
	}
	if _, err := Install(source(t, "old"), dir, "1"); !errors.Is(err, ErrDiffers) {
		t.Errorf("a link leads elsewhere: got %v", err)
	}
	if err := errors.Join(os.Remove(link), os.Symlink(paths.ContainerCUDA, link)); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(target, paths.Vgpuctl)); err != nil {
		t.Fatal(err)
	}
	if _, err := Install(source(t, "old"), dir, "1"); !errors.Is(err, ErrDiffers) {
		t.Errorf("a file is missing: got %v", err)
	}
}

func TestInstallLeavesNothingBehindWhenItFails(t *testing.T) {
	from, dir := source(t, "cuda"), t.TempDir()
	if err := os.Remove(filepath.Join(from, "bin/vgpuctl")); err != nil {
		t.Fatal(err)
	}
	if _, err := Install(from, dir, "1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left %v, %v", entries, err)
	}
	for _, version := range []string{"", "..", "a/b", ".hidden"} {
		if _, err := Install(from, dir, version); err == nil {
			t.Errorf("version %q was taken", version)
		}
	}
}

// TestALeaseDelaysNoInstallation checks that an agent starts although a container has write leases on
// installed files. An open of such a file would wait for 45 s.
func TestALeaseDelaysNoInstallation(t *testing.T) {
	from, dir := source(t, "cuda"), t.TempDir()
	target, err := Install(from, dir, "1")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{paths.Vgpuctl, paths.CUDALibrary, paths.Preload} {
		tenant, err := os.Open(filepath.Join(target, name))
		if err != nil {
			t.Fatal(err)
		}
		defer tenant.Close()
		if _, err := unix.FcntlInt(tenant.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
			t.Fatal(err)
		}
	}
	again := func(from string, want error) {
		t.Helper()
		begin := time.Now()
		if _, err := Install(from, dir, "1"); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
		if took := time.Since(begin); took > 20*time.Second {
			t.Errorf("the installation took %v", took)
		}
	}
	again(from, nil)
	again(source(t, "longer"), ErrDiffers)
}
