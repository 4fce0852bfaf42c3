// SPDX-License-Identifier: Apache-2.0

package install

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
)

// Guard installs the guard's program from source into the directory of the plugins that the runtime
// starts, and the settings into the same directory. A running guard applies changed settings at
// once. A new program takes effect at the runtime's next start. Guard never restarts the runtime.
func Guard(source, pluginDir string, settings guardfile.Settings) (string, error) {
	program := filepath.Join(pluginDir, paths.GuardProgram)
	f := file{source: filepath.Join(source, "bin", paths.GuardName), mode: 0o755}
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

// replace replaces a program atomically. replace first writes the program into a separate
// directory, because a starting runtime treats each executable file in its plugin directory as a
// plugin. If a file's name is not valid for a plugin, the runtime starts no plugin at all.
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
		return fmt.Errorf("rename %s into place: %w", path, err)
	}
	return sync(dir)
}
