// SPDX-License-Identifier: Apache-2.0

// Package guardfile reads and writes the files that the guard shares with other programs. These are
// the guard's settings, the guard's status, and the list of pods that request GPUs.
package guardfile

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// Settings are the guard's settings. The settings file is in the directory of the guard's program,
// and the guard reads the file again after each change. A new configuration or version thus applies
// at once, though the runtime started the guard at boot.
type Settings struct {
	InstallDir string `json:"installDir"`
	RunDir     string `json:"runDir"`
	StateDir   string `json:"stateDir"`
	// ExemptNamespaces are namespaces whose containers the previous release's guard does not check.
	// This release's guard skips the check only beside an agent of the previous release, which
	// marks no exempt containers. This release's guard allows NRI messages of any total size about
	// pods of these namespaces.
	ExemptNamespaces []string `json:"exemptNamespaces"`
	// MarksExempt reports whether the agent marks the containers that it exempts. Only the agent
	// reads the requests of these containers.
	MarksExempt bool   `json:"marksExempt"`
	CDIKind     string `json:"cdiKind"`
	// Plugin is the agent's name among the runtime's plugins, as "90-nri-vgpu".
	Plugin string `json:"plugin"`
	// Socket is the runtime's socket for plugins that the runtime did not start.
	Socket string `json:"socket"`
	// Retiring are the pods, by the runtime's UIDs, that existed when nri-vgpu was removed from the
	// node. While Retiring is not empty, the guard refuses only containers of these pods.
	Retiring []string `json:"retiring,omitempty"`
}

// SettingsFrom returns the guard's settings from the configuration.
func SettingsFrom(cfg config.Config) Settings {
	return Settings{
		InstallDir:       cfg.Paths.InstallDir,
		RunDir:           cfg.Paths.RunDir,
		StateDir:         cfg.Paths.StateDir,
		ExemptNamespaces: slices.Clone(cfg.Node.ExemptNamespaces),
		MarksExempt:      true,
		CDIKind:          cfg.Injection.CDIKind,
		Plugin:           cfg.NRI.PluginIndex + "-" + cfg.NRI.PluginName,
		Socket:           cfg.NRI.SocketPath,
	}
}

// Write installs the settings of the guard's program at that path.
func (s Settings) Write(program string) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the guard's settings: %w", err)
	}
	// The file must not be executable. The runtime would treat the file as a plugin with an invalid
	// name, and start no plugin at all.
	err = renameio.WriteFile(paths.GuardSettings(program), append(data, '\n'), 0o644,
		renameio.IgnoreUmask(), renameio.WithTempDir(filepath.Dir(program)))
	if err != nil {
		return fmt.Errorf("write the guard's settings: %w", err)
	}
	return nil
}

// ReadSettings returns the settings in a file.
func ReadSettings(path string) (Settings, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Settings{}, fmt.Errorf("read the guard's settings: %w", err)
	}
	// Settings of another version may have other fields. A missing field keeps its default.
	s := SettingsFrom(config.Default())
	s.MarksExempt = false
	if err := json.Unmarshal(data, &s); err != nil {
		return Settings{}, fmt.Errorf("read the guard's settings: %w", err)
	}
	return s, nil
}
