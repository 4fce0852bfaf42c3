// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// rules are the settings by which the guard decides.
type rules struct {
	guardfile.Settings
	// program is the guard's path, which refusals contain.
	program string
}

// rules returns the current rules, and whether nri-vgpu is installed. After a removal of nri-vgpu
// the guard allows everything. While the settings are unreadable, the last readable settings apply,
// or the defaults if no settings were readable.
func (g *Guard) rules() (rules, bool) {
	s, err := g.read.get(paths.GuardSettings(g.program), guardfile.ReadSettings)
	if errors.Is(err, fs.ErrNotExist) {
		return rules{s, g.program}, false
	}
	if s.InstallDir == "" {
		s = guardfile.SettingsFrom(config.Default())
	}
	_, err = os.Stat(s.InstallDir)
	return rules{s, g.program}, !errors.Is(err, fs.ErrNotExist)
}

// installDir returns the directory of the libraries, or "" if nri-vgpu is not installed.
func (g *Guard) installDir() string {
	if r, installed := g.rules(); installed {
		return r.InstallDir
	}
	return ""
}

// systemNamespace contains the pods of Kubernetes itself.
const systemNamespace = "kube-system"

// trusts reports whether a namespace is the cluster's own. The guard does not bound the pods of a
// trusted namespace: users who may create pods in the namespace control the node anyway.
func (r rules) trusts(namespace string) bool {
	return namespace == systemNamespace || slices.Contains(r.ExemptNamespaces, namespace)
}

// asks reports whether a container's pod is known to request GPUs. A pod is known if the agent has
// listed it, or has made files for its containers since the node booted.
func (g *Guard) asks(r rules, c Container) bool {
	// If the list is unreadable, the last readable list applies, or an empty list if no list was
	// readable. A pod outside the list gets no GPU with any list.
	listed, _ := g.asking.get(paths.AskingPods(r.StateDir), guardfile.ReadAskingFile)
	pod := guardfile.Pod{UID: c.PodUID, Namespace: c.Namespace, Name: c.Pod}
	if slices.ContainsFunc(listed, func(l guardfile.Pod) bool { return l.Is(pod) }) {
		return true
	}
	if !filepath.IsLocal(c.PodUID) || c.PodUID != filepath.Base(c.PodUID) || c.PodUID == "." {
		return false // not a file name
	}
	_, err := os.Stat(filepath.Join(paths.Containers(r.RunDir), c.PodUID))
	return err == nil
}
