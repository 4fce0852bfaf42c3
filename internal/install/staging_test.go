// SPDX-License-Identifier: Apache-2.0

package install

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
)

// stage creates a staging directory with a file, as a killed program leaves it.
func stage(t *testing.T, dir, name string, age time.Duration) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "part"), []byte("x"), 0o755); err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(-age)
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// TestWhatKilledInstallationsLeftIsRemoved checks that an init container that is repeatedly killed
// does not fill the node's disk.
func TestWhatKilledInstallationsLeftIsRemoved(t *testing.T) {
	from, dir, plugins := source(t, "cuda"), t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(from, "bin", paths.GuardName), []byte("guard"), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 { // in the second round, all files are installed already
		for _, at := range []string{filepath.Join(dir, ".installing-"), filepath.Join(plugins, ".nri-vgpu-")} {
			stage(t, filepath.Dir(at), filepath.Base(at)+"old", 2*time.Hour)
			stage(t, filepath.Dir(at), filepath.Base(at)+"new", time.Minute)
		}
		stage(t, plugins, "another", 2*time.Hour)
		if _, err := Install(from, dir, "1"); err != nil {
			t.Fatal(err)
		}
		if _, err := Guard(from, plugins, guardfile.Settings{}); err != nil {
			t.Fatal(err)
		}
		if got, want := names(t, dir), []string{".installing-new", "1"}; !slices.Equal(got, want) {
			t.Errorf("left are %q, want %q", got, want)
		}
		if got := names(t, plugins); slices.Contains(got, ".nri-vgpu-old") || !slices.Contains(got, ".nri-vgpu-new") || !slices.Contains(got, "another") {
			t.Errorf("left beside the guard are %q", got)
		}
	}
}
