// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFindLibrary(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "usr/lib64")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := FindLibrary(root, "")
	var missing *LibraryError
	if !errors.As(err, &missing) || len(missing.Tried) != len(libraryDirs) {
		t.Fatalf("got %v", err)
	}
	want := filepath.Join(dir, libraryName)
	if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "driver.root") {
		t.Errorf("%q does not help", err)
	}
	if err := os.WriteFile(want, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := FindLibrary(root, ""); err != nil || got != want {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err := FindLibrary("/nowhere", want); err != nil || got != want {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := FindLibrary(root, "/nowhere/lib.so"); err == nil || !strings.Contains(err.Error(), "/nowhere/lib.so") {
		t.Errorf("got %v", err)
	}
}

func TestFindCUDALibrary(t *testing.T) {
	root, elsewhere := t.TempDir(), t.TempDir()
	if _, err := FindCUDALibrary(Options{Root: root}); err == nil || !strings.Contains(err.Error(), root) {
		t.Errorf("without a library: %v", err)
	}
	usual, beside := filepath.Join(root, "usr/lib64", cudaLibraryName), filepath.Join(elsewhere, cudaLibraryName)
	for _, path := range []string{usual, beside} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for library, want := range map[string]string{
		"": usual, filepath.Join(elsewhere, libraryName): beside, "/nowhere/" + libraryName: usual,
	} {
		if got, err := FindCUDALibrary(Options{Root: root, Library: library}); err != nil || got != want {
			t.Errorf("with NVML %q: got %q, %v, want %q", library, got, err, want)
		}
	}
}

func TestFindLibraryFollowsLinksInsideTheRoot(t *testing.T) {
	root := t.TempDir()
	lib, alternatives, nvidia := "usr/lib/x86_64-linux-gnu", "etc/alternatives", "usr/lib/x86_64-linux-gnu/nvidia/current"
	for _, dir := range []string{alternatives, nvidia} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	want := filepath.Join(root, nvidia, "libnvidia-ml.so.580.1")
	if err := os.WriteFile(want, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{
		lib + "/" + libraryName:     "/etc/alternatives/nvml",
		alternatives + "/nvml":      "/" + nvidia + "/" + libraryName,
		nvidia + "/" + libraryName:  "libnvidia-ml.so.580.1",
		"usr/lib64":                 "../../../../../../usr/lib64", // a loop
		"usr/lib/aarch64-linux-gnu": "/nowhere",
	} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := FindLibrary(root, ""); err != nil || got != want {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := resolve(root, "/usr/lib64/x"); err == nil {
		t.Error("a loop of links was followed")
	}
}
