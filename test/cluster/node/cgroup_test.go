// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// writeFiles makes files, as the kernel would in a cgroup.
func writeFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestInheritCPUSet(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "child")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	writeFiles(t, parent, map[string]string{"cpuset.cpus": "0-1\n", "cpuset.mems": "0\n"})
	writeFiles(t, dir, map[string]string{"cpuset.cpus": "\n", "cpuset.mems": "\n"})
	if err := inheritCPUSet(parent, dir); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"cpuset.cpus": "0-1\n", "cpuset.mems": "0\n"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v; want %q", name, got, err, want)
		}
	}
	if err := inheritCPUSet(t.TempDir(), t.TempDir()); err != nil {
		t.Errorf("a hierarchy without cpusets: %v", err)
	}
}

func TestDelegate(t *testing.T) {
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{"cgroup.controllers": "cpu\n", "cgroup.subtree_control": ""})
	if err := (hierarchy{v2: true}).delegate(dir); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control")); err != nil || string(got) != "+cpu" {
		t.Errorf("subtree_control got %q, %v", got, err)
	}
	if err := (hierarchy{}).delegate("/does/not/exist"); err != nil {
		t.Errorf("v1 needs no delegation, but: %v", err)
	}
}

func TestRemoveTree(t *testing.T) {
	root := filepath.Join(t.TempDir(), "a")
	if err := os.MkdirAll(filepath.Join(root, "b", "c"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := removeTree(root, time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the cgroup still exists: %v", err)
	}
	if err := removeTree(root, time.Now()); err != nil {
		t.Errorf("removing a cgroup that does not exist: %v", err)
	}
}
