package mps

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// tree makes files in a directory of the test's.
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

// opened are the cgroups that processes can be put in. The kernel makes a cgroup's
// files; here they are there before.
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
