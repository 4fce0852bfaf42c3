package guard

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
)

// Settings are what the guard has to know. They are installed beside its
// program, and read again whenever they change: a new configuration or version
// holds at once, though the runtime started the guard at boot.
type Settings struct {
	InstallDir string `json:"installDir"`
	RunDir     string `json:"runDir"`
	StateDir   string `json:"stateDir"`
	// ExemptNamespaces are left alone by guards of the previous release. They hold here
	// only beside an agent of the previous release, which does not mark what it exempts.
	ExemptNamespaces []string `json:"exemptNamespaces"`
	// MarksExempt: the agent marks the containers that it exempts, as it alone knows what
	// they ask for.
	MarksExempt bool   `json:"marksExempt"`
	CDIKind     string `json:"cdiKind"`
	// Plugin is the agent among the runtime's plugins, as "90-nri-vgpu".
	Plugin string `json:"plugin"`
	// Socket is where plugins reach the runtime that it did not start.
	Socket string `json:"socket"`
	// Retiring are the pods, by the runtime's UIDs, that lived when nri-vgpu was
	// removed from the node. Their containers are still guarded, and no others.
	Retiring []string `json:"retiring,omitempty"`

	program string
}

// SettingsFrom takes from the configuration what concerns the guard.
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
	// No part of it may be executable: the runtime would take the file for a
	// plugin, and, its name being none, start no plugin at all.
	err = renameio.WriteFile(layout.GuardSettings(program), append(data, '\n'), 0o644,
		renameio.IgnoreUmask(), renameio.WithTempDir(filepath.Dir(program)))
	if err != nil {
		return fmt.Errorf("write the guard's settings: %w", err)
	}
	return nil
}

func readSettings(path string) (Settings, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Settings{}, fmt.Errorf("read the guard's settings: %w", err)
	}
	// Settings of another version may say more or less: less is the default.
	s := SettingsFrom(config.Default())
	s.MarksExempt = false
	if err := json.Unmarshal(data, &s); err != nil {
		return Settings{}, fmt.Errorf("read the guard's settings: %w", err)
	}
	return s, nil
}

// settings gives the settings as they are now, and whether nri-vgpu is
// installed at all: where it was removed, the guard has nothing to guard.
// Settings that cannot be read are those read before, or the defaults.
func (g *Guard) settings() (Settings, bool) {
	s, err := g.read.get(layout.GuardSettings(g.program), readSettings)
	if errors.Is(err, fs.ErrNotExist) {
		return s, false
	}
	if s.InstallDir == "" {
		s = SettingsFrom(config.Default())
	}
	s.program = g.program
	_, err = os.Stat(s.InstallDir)
	return s, !errors.Is(err, fs.ErrNotExist)
}
