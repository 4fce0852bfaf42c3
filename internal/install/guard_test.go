// SPDX-License-Identifier: Apache-2.0

package install

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/internal/uninstall/nodefiles"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

func guardSource(t *testing.T, content string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bin", paths.GuardName), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestGuardIsInstalledReplacedAndRemoved(t *testing.T) {
	plugins := filepath.Join(t.TempDir(), "nri", "plugins")
	settings := guardfile.SettingsFrom(config.Default())
	var before os.FileInfo
	for _, content := range []string{"one", "one", "two"} {
		program, err := Guard(guardSource(t, content), plugins, settings)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(program)
		if err != nil || string(got) != content {
			t.Errorf("installed is %q, %v, want %q", got, err, content)
		}
		after, err := os.Stat(program)
		if err != nil || after.Mode().Perm() != 0o755 {
			t.Errorf("its mode is %v, %v", after.Mode(), err)
		}
		if before != nil && os.SameFile(before, after) != (content == "one") {
			t.Errorf("%q: the same program is replaced, or another is not", content)
		}
		before = after
		checkPlugins(t, plugins)
	}
	// A second removal of the guard succeeds, too.
	for range 2 {
		if err := nodefiles.RemoveGuard(plugins); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(plugins); err != nil || len(left) != 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

// checkPlugins checks that every executable file in the directory has a plugin's name, as a runtime
// requires.
func checkPlugins(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if e.IsDir() || info.Mode()&0o111 == 0 {
			continue
		}
		if index, name, err := api.ParsePluginName(e.Name()); err != nil || index != paths.GuardIndex || name != paths.GuardName {
			t.Errorf("the runtime takes %s for a plugin: %v", e.Name(), err)
		}
	}
}
