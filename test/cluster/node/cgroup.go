// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// systemCgroup contains the supervisor and the components, below the node's own cgroup. In cgroup
// v2, a cgroup with limited children may not itself contain processes.
const systemCgroup = "system"

// A hierarchy is one mounted tree of cgroups.
type hierarchy struct {
	root string
	v2   bool
	// options are the mount options. For v1, the options name the hierarchy's controllers.
	options string
}

// cgroupOptions are the super options of a v1 hierarchy that are not controllers.
var cgroupOptions = map[string]bool{"rw": true, "ro": true, "xattr": true, "noprefix": true}

// hierarchies returns all trees of cgroups, each at its first mount point.
func hierarchies(mounts []mount) []hierarchy {
	var found []hierarchy
	seen := map[string]bool{}
	for _, m := range mounts {
		h := hierarchy{root: m.point}
		switch m.fsType {
		case "cgroup2":
			h.v2 = true
		case "cgroup":
			h.options = controllersOf(m.superOptions)
		default:
			continue
		}
		if seen[h.options] {
			continue
		}
		seen[h.options] = true
		found = append(found, h)
	}
	return found
}

func controllersOf(options []string) string {
	var controllers []string
	for _, o := range options {
		if !cgroupOptions[o] && !strings.HasPrefix(o, "release_agent=") && !strings.HasPrefix(o, "clone_children") {
			controllers = append(controllers, o)
		}
	}
	return strings.Join(controllers, ",")
}

// enterCgroup makes the node's cgroup in every hierarchy, and moves the calling process into the
// cgroup.
func enterCgroup(trees []hierarchy, cgroup string) error {
	if len(trees) == 0 {
		return errors.New("no cgroups are mounted: mount cgroup2 on /sys/fs/cgroup")
	}
	for _, h := range trees {
		dir := h.root
		for _, part := range strings.Split(cgroup, "/") {
			if err := h.delegate(dir); err != nil {
				return err
			}
			if err := makeCgroup(dir, part); err != nil {
				return err
			}
			dir = filepath.Join(dir, part)
		}
		if err := join(dir); err != nil {
			return err
		}
	}
	return nil
}

// enterSystemCgroup moves the calling process below the node's own cgroup, which then can limit
// pods. The components start in the cgroup of the calling process.
func enterSystemCgroup(trees []hierarchy, cgroup string) error {
	for _, h := range trees {
		dir := filepath.Join(h.root, cgroup)
		if err := makeCgroup(dir, systemCgroup); err != nil {
			return err
		}
		if err := join(filepath.Join(dir, systemCgroup)); err != nil {
			return err
		}
		if err := h.delegate(dir); err != nil {
			return err
		}
	}
	return nil
}

// makeCgroup makes a cgroup that can contain processes.
func makeCgroup(parent, name string) error {
	dir := filepath.Join(parent, name)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make cgroup: %w", err)
	}
	return inheritCPUSet(parent, dir)
}

// join moves the calling process into a cgroup.
func join(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
		return fmt.Errorf("join cgroup: %w", err)
	}
	return nil
}

// delegate allows the children of a v2 cgroup to use the cgroup's own controllers.
func (h hierarchy) delegate(dir string) error {
	if !h.v2 {
		return nil
	}
	content, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("read cgroup controllers: %w", err)
	}
	for _, c := range strings.Fields(string(content)) {
		err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0)
		if errors.Is(err, syscall.EBUSY) {
			return fmt.Errorf("cgroup %s contains processes, so controller %s cannot be enabled in its child cgroups: "+
				"move them away (mkdir %s/init; for p in $(cat %s/cgroup.procs); do echo $p > %s/init/cgroup.procs; done): %w",
				dir, c, dir, dir, dir, err)
		}
		if err != nil {
			return fmt.Errorf("enable cgroup controller %s in cgroups below %s: %w", c, dir, err)
		}
	}
	return nil
}

// inheritCPUSet copies the parent's processors and memory nodes to a new cpuset of cgroup v1. A
// cpuset without processors and memory nodes can hold no process.
func inheritCPUSet(parent, dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "cgroup.controllers")); err == nil {
		return nil // cgroup v2 inherits processors and memory nodes itself
	}
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(parent, name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil // not a cpuset hierarchy
		}
		if err != nil {
			return fmt.Errorf("read cpuset: %w", err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), value, 0); err != nil {
			return fmt.Errorf("set cpuset: %w", err)
		}
	}
	return nil
}

// RemoveCgroup removes a node's cgroup from all hierarchies, with all cgroups below, and removes
// the parent cgroup if the parent is empty. The processes must have ended. The kernel may take a
// moment to release the cgroup, so RemoveCgroup retries until the deadline.
func RemoveCgroup(cgroup string, patience time.Duration) error {
	mounts, err := readMounts()
	if err != nil {
		return err
	}
	deadline := time.Now().Add(patience)
	for _, h := range hierarchies(mounts) {
		if err := removeTree(filepath.Join(h.root, cgroup), deadline); err != nil {
			return err
		}
		// The removal fails while other nodes have cgroups in the parent.
		_ = syscall.Rmdir(filepath.Join(h.root, filepath.Dir(cgroup)))
	}
	return nil
}

func removeTree(dir string, deadline time.Time) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list cgroup: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name()), deadline); err != nil {
				return err
			}
		}
	}
	for {
		err := syscall.Rmdir(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, syscall.EBUSY) || time.Now().After(deadline) {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
