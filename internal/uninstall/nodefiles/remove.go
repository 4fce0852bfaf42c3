// SPDX-License-Identifier: Apache-2.0

package nodefiles

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
)

// These are the names of nri-vgpu's files in paths.run_dir and in paths.state_dir.
var (
	runNames = []string{
		nodereport.FileName, paths.DriverNames(""), paths.GuardStatus(""), paths.AdminSocket(""), paths.MetricsSocket(""),
		paths.Agent(""), paths.Containers(""), paths.Usage(""), paths.MPS(""),
	}
	stateNames = []string{paths.AskingPods(""), paths.Contexts(""), paths.MPSLogs("")}
)

// inRunDir reports whether nri-vgpu has written an entry of paths.run_dir.
func inRunDir(path string) bool { return named(path, runNames) }

// inStateDir reports whether nri-vgpu has written an entry of paths.state_dir.
func inStateDir(path string) bool { return named(path, stateNames) }

// named reports whether a path has one of the names, or a temporary name of a killed writer, such
// as ".node.json123".
func named(path string, names []string) bool {
	name := filepath.Base(path)
	replaced := strings.TrimRight(name, "0123456789")
	return slices.Contains(names, name) ||
		replaced != name && strings.HasPrefix(replaced, ".") && slices.Contains(names, replaced[1:])
}

// inInstallDir reports whether nri-vgpu has written an entry of paths.install_dir: a version's
// directory or a staging directory. A version can have any name. The directory of each version
// contains the list of the preloaded libraries.
func inInstallDir(path string) bool {
	if strings.HasPrefix(filepath.Base(path), paths.Staging) {
		return true
	}
	libraries, err := os.ReadFile(filepath.Join(path, paths.Preload))
	return err == nil && bytes.Contains(libraries, []byte(paths.ContainerCUDA))
}

// removeVersions removes the versions in paths.install_dir, and then the directory if it is empty.
func removeVersions(dir string) error {
	entries, err := list(dir)
	if err != nil {
		return err
	}
	isList := func(path string) bool { return filepath.Base(path) == paths.Preload }
	for _, path := range entries {
		if inInstallDir(path) {
			// removeBut keeps the list, so that the next attempt recognizes the version after an
			// interruption. removeOwn removes the list.
			if err := removeBut(path, isList); err != nil {
				return err
			}
		}
	}
	return removeOwn(dir, inInstallDir)
}

// removeOwn removes nri-vgpu's files in a directory, and then the directory if it is empty and not
// a mount point.
func removeOwn(dir string, own func(path string) bool) error {
	if err := removeBut(dir, func(path string) bool { return !own(path) }); err != nil {
		return err
	}
	err := os.Remove(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("remove the installed files: %w", err)
	}
	return nil
}

// removeBut removes all entries of a directory except those for which keep returns true.
func removeBut(dir string, keep func(path string) bool) error {
	entries, err := list(dir)
	problems := []error{err}
	for _, path := range entries {
		if !keep(path) {
			problems = append(problems, remove(path))
		}
	}
	return errors.Join(problems...)
}

// remove removes a file or a directory. If path is a mount point, remove empties the directory.
func remove(path string) error {
	if err := os.RemoveAll(path); err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("remove the installed files: %w", err)
	}
	return nil
}

// list returns the paths of a directory's entries.
func list(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("find the installed files: %w", err)
	}
	var found []string
	for _, e := range entries {
		found = append(found, filepath.Join(dir, e.Name()))
	}
	return found, nil
}

// others returns the configured directories that are not empty.
func (r Remover) others(s guardfile.Settings) []string {
	return slices.DeleteFunc([]string{s.InstallDir, s.StateDir, s.RunDir}, func(dir string) bool {
		entries, err := os.ReadDir(r.at(dir))
		return err != nil || len(entries) == 0
	})
}
