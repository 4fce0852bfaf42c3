// SPDX-License-Identifier: Apache-2.0

package install

import (
	"fmt"
	"io"

	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/internal/uninstall/nodefiles"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// Options describes an installation on a node.
type Options struct {
	Config config.Config
	// Source is the directory with the files, in lib and bin.
	Source string
	// Dir is the parent of the version's directory. An empty Dir stands for paths.install_dir.
	Dir string
	// Namespace is the agent's namespace, or empty. The guard of the previous release rejects
	// agents in other namespaces.
	Namespace string
	// Out receives messages with the paths of the files.
	Out io.Writer
}

// Node installs the libraries and tools of this version. Node also installs the guard, or removes
// the guard if the configuration disables it.
func Node(o Options) error {
	if o.Dir == "" {
		o.Dir = o.Config.Paths.InstallDir
	}
	target, err := Install(o.Source, o.Dir, version.Version)
	if err != nil {
		return err
	}
	fmt.Fprintln(o.Out, target)
	if o.Config.Guard.PluginDir == "" {
		return nodefiles.RemoveGuard(config.Default().Guard.PluginDir)
	}
	settings := guardfile.SettingsFrom(o.Config)
	settings.InstallDir = o.Dir
	if o.Namespace != "" {
		settings.ExemptNamespaces = append(settings.ExemptNamespaces, o.Namespace)
	}
	program, err := Guard(o.Source, o.Config.Guard.PluginDir, settings)
	if err != nil {
		return err
	}
	fmt.Fprintln(o.Out, program)
	return nil
}
