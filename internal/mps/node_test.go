// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// tree creates files in a temporary directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// opened returns the cgroups whose list of processes openCgroups has opened. The kernel creates a
// cgroup's files; in this test the files exist before.
func opened(t *testing.T, root string) []string {
	t.Helper()
	files, err := openCgroups(root)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(files)
	var names []string
	for _, f := range files {
		name, err := filepath.Rel(root, f.Name())
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	return names
}

// TestControlEndsWithItsContext checks that control returns even if a hung control program has left
// a child that keeps the program's output open.
func TestControlEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	program, child := filepath.Join(dir, "control"), filepath.Join(dir, "child")
	script := "#!/bin/sh\nsleep 60 &\necho $! >" + child + "\nexec sleep 60\n"
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := control(ctx, program, []string{"PATH=/usr/bin:/bin"}, "get_server_list")
		done <- err
	}()
	var pid int
	eventually.Holds(t, patience, "the program has a child", func() bool {
		content, err := os.ReadFile(child)
		if err != nil {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(content)))
		return err == nil
	})
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	cancel()
	select {
	case err := <-done:
		if err == nil {
			t.Error("it was answered by a program that was killed")
		}
	case <-time.After(patience):
		t.Errorf("not within %v after its context has ended", patience)
	}
}

func TestCgroupOfVersion2(t *testing.T) {
	root := tree(t, map[string]string{"cgroup.controllers": "cpu", "cgroup.procs": "", "nri-vgpu-mps/cgroup.procs": "", "kubepods/cgroup.procs": ""})
	if got := opened(t, root); !slices.Equal(got, []string{"nri-vgpu-mps/cgroup.procs"}) {
		t.Errorf("opened %v", got)
	}
}

func TestCgroupsOfVersion1(t *testing.T) {
	root := tree(t, map[string]string{
		"cpuset/cgroup.procs": "", "cpuset/cpuset.cpus": "0-1\n", "cpuset/cpuset.mems": "0\n",
		"cpuset/nri-vgpu-mps/cgroup.procs": "", "cpuset/nri-vgpu-mps/cpuset.cpus": "\n", "cpuset/nri-vgpu-mps/cpuset.mems": "0\n",
		"devices/cgroup.procs": "", "devices/nri-vgpu-mps/cgroup.procs": "",
		"something/else": "",
	})
	if err := os.Symlink("devices", filepath.Join(root, "alias")); err != nil {
		t.Fatal(err)
	}
	got := opened(t, root)
	if want := []string{"cpuset/nri-vgpu-mps/cgroup.procs", "devices/nri-vgpu-mps/cgroup.procs"}; !slices.Equal(got, want) {
		t.Errorf("opened %v, want %v", got, want)
	}
	cpus, err := os.ReadFile(filepath.Join(root, "cpuset/nri-vgpu-mps/cpuset.cpus"))
	if err != nil || string(cpus) != "0-1\n" {
		t.Errorf("a cgroup without processors takes no process; it has %q (%v)", cpus, err)
	}
}
