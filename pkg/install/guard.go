package install

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/nri-vgpu/nri-vgpu/pkg/guard"
	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
)

// Guard puts the guard's program, from source, where the runtime takes plugins
// from that it starts itself, and its settings beside it. A guard that runs
// follows its settings at once; the program takes part when the runtime next
// starts. It never touches the runtime itself.
func Guard(source, pluginDir string, settings guard.Settings) (string, error) {
	program := filepath.Join(pluginDir, layout.GuardProgram)
	f := file{source: filepath.Join(source, "bin", layout.GuardName), mode: 0o755}
	removeAbandoned(pluginDir, stagingProgram)
	if err := os.MkdirAll(pluginDir, 0o755); err != nil {
		return "", fmt.Errorf("install the guard into %s (guard.plugin_dir): %w", pluginDir, err)
	}
	if err := settings.Write(program); err != nil {
		return "", err
	}
	want, err := f.checksum()
	if err != nil {
		return "", fmt.Errorf("read the guard: %w", err)
	}
	if have, err := (file{source: program}).checksum(); err == nil && have == want {
		return program, nil
	}
	return program, f.replace(program)
}

// replace puts a program in the place of another in one step. It is made in a
// directory of its own: a runtime that starts just then takes every executable
// file in its plugins' directory for a plugin, and, if the name is not one's,
// starts none at all.
func (f file) replace(path string) error {
	dir := filepath.Dir(path)
	staging, err := os.MkdirTemp(dir, stagingProgram)
	if err != nil {
		return fmt.Errorf("install into %s: %w", dir, err)
	}
	defer os.RemoveAll(staging)
	made := filepath.Join(staging, filepath.Base(path))
	if err := f.copyTo(made); err != nil {
		return fmt.Errorf("install %s: %w", path, err)
	}
	if err := os.Rename(made, path); err != nil {
		return fmt.Errorf("put %s in place: %w", path, err)
	}
	return sync(dir)
}

// RemoveGuard takes the guard away; one that runs ends.
func RemoveGuard(pluginDir string) error {
	return guard.RemoveProgram(filepath.Join(pluginDir, layout.GuardProgram))
}
