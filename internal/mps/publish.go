// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// keptBack are files of the daemon that no client needs. Through the privileged socket, root could
// end the daemon, even the root user of a container.
var keptBack = []string{"control_privileged", "control_lock"}

// publish makes the clients' directory a copy of the daemon's directory by hard links, without
// keptBack. publish does not replace the clients' directory itself, so that containers that have
// mounted the directory find the next daemon, too.
func publish(dirs Dirs) error {
	entries, err := os.ReadDir(dirs.Pipes)
	if err != nil {
		return fmt.Errorf("list the MPS control daemon's pipes: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if entry.IsDir() || slices.Contains(keptBack, entry.Name()) {
			continue
		}
		names = append(names, entry.Name())
		if err := link(filepath.Join(dirs.Pipes, entry.Name()), filepath.Join(dirs.Clients, entry.Name())); err != nil {
			return fmt.Errorf("link the MPS control daemon's pipes for clients: %w", err)
		}
	}
	old, err := os.ReadDir(dirs.Clients)
	if err != nil {
		return fmt.Errorf("list the clients' pipes: %w", err)
	}
	for _, entry := range old {
		if !slices.Contains(names, entry.Name()) {
			if err := os.Remove(filepath.Join(dirs.Clients, entry.Name())); err != nil {
				return fmt.Errorf("remove a pipe of an earlier MPS control daemon: %w", err)
			}
		}
	}
	return nil
}

// link creates another name for a file, and replaces an existing file of that name.
func link(file, name string) error {
	fresh := filepath.Join(filepath.Dir(name), "."+filepath.Base(name))
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Link(file, fresh); err != nil {
		return err
	}
	// If both names already refer to the same file, the rename leaves both.
	if err := os.Rename(fresh, name); err != nil {
		return err
	}
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
