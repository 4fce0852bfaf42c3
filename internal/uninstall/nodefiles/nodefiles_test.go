// SPDX-License-Identifier: Apache-2.0

package nodefiles

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/test/ownmounts"
)

const (
	running = "0fc30b6a-0000-4000-8000-00000000000a" // this pod has processes
	known   = "0fc30b6a-0000-4000-8000-00000000000b" // known only to the kubelet, as after a boot
	pending = "0fc30b6a-0000-4000-8000-00000000000c" // this pod requests GPUs and has a sandbox
	gone    = "0fc30b6a-0000-4000-8000-00000000000d"
)

// installed returns the Remover and the settings of a node on which nri-vgpu is installed.
func installed(t *testing.T) (Remover, guardfile.Settings) {
	t.Helper()
	root, proc := t.TempDir(), t.TempDir()
	s := guardfile.SettingsFrom(config.Default())
	r := Remover{Root: root, Proc: proc, Program: filepath.Join("/opt/nri/plugins", paths.GuardProgram)}
	for path, content := range map[string]string{
		"/opt/nri-vgpu/1/libcuda.so.1":               "",
		"/opt/nri-vgpu/1/ld.so.preload":              string(paths.PreloadContent()),
		"/run/nri-vgpu/node.json":                    "",
		"/run/nri-vgpu/agent/agent.sock":             "",
		"/run/nri-vgpu/guard.json":                   "",
		"/var/lib/nri-vgpu/mps/control.log":          "",
		"/etc/other":                                 "",
		"/var/lib/kubelet/pods/" + known + "/volume": "",
		r.Program: "",
		paths.Containers(s.RunDir) + "/" + running + "/main/limits": "",
		paths.Containers(s.RunDir) + "/" + known + "/main/limits":   "",
		paths.Containers(s.RunDir) + "/" + gone + "/main/limits":    "",
	} {
		write(t, filepath.Join(root, path), content)
	}
	if err := s.Write(filepath.Join(root, r.Program)); err != nil {
		t.Fatal(err)
	}
	if err := guardfile.WriteAsking(filepath.Join(root, s.StateDir), []guardfile.Pod{{UID: running}, {UID: pending}, {UID: gone}}); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(proc, "1", "cgroup"), "0::/init.scope\n")
	return r, s
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// runs adds a process to a pod. For pid 3, the cgroup has a name of systemd's driver.
func (r Remover) runs(t *testing.T, pid, uid string) {
	t.Helper()
	cgroup := "4:memory:/kubepods/besteffort/pod" + uid + "/" + strings.Repeat("ab", 32) + "\n"
	if pid == "3" {
		cgroup = "0::/../../kubepods-besteffort-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice/cri-containerd-x.scope\n"
	}
	write(t, filepath.Join(r.Proc, pid, "cgroup"), cgroup)
}

func (r Remover) files(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(r.Root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, strings.TrimPrefix(path, r.Root))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestRemoveLeavesWhatPodsUse(t *testing.T) {
	r, s := installed(t)
	r.runs(t, "2", running)
	r.runs(t, "3", pending)
	// A second Remove succeeds even after the first Remove has removed the list of requesting pods.
	for range 2 {
		left, err := r.Remove(s)
		if err != nil || !slices.Equal(left.Pods, []string{running, known, pending}) {
			t.Fatalf("left are %v, %v", left, err)
		}
	}
	want := []string{
		"/etc/other",
		r.Program, paths.GuardSettings(r.Program),
		"/opt/nri-vgpu/1/ld.so.preload",
		"/opt/nri-vgpu/1/libcuda.so.1",
		paths.Containers(s.RunDir) + "/" + running + "/main/limits",
		paths.Containers(s.RunDir) + "/" + known + "/main/limits",
		"/run/nri-vgpu/guard.json",
		"/var/lib/kubelet/pods/" + known + "/volume",
	}
	if diff := cmp.Diff(want, r.files(t)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	watched, err := guardfile.ReadSettings(paths.GuardSettings(r.at(r.Program)))
	if err != nil || !slices.Equal(watched.Retiring, []string{running, known, pending}) {
		t.Errorf("the guard watches over %v, %v", watched.Retiring, err)
	}

	// Once the pods are gone, the guard calls Remove with its settings.
	for _, path := range []string{filepath.Join(r.Proc, "2"), filepath.Join(r.Proc, "3"), r.at("/var/lib/kubelet")} {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := r.Remove(watched); err != nil || len(left.Pods) != 0 || len(left.Others) != 0 {
		t.Fatalf("left are %v, %v", left, err)
	}
	if diff := cmp.Diff([]string{"/etc/other"}, r.files(t)); diff != "" {
		t.Errorf("left in the end (-want +got):\n%s", diff)
	}
}

func TestRemoveWithoutAGuard(t *testing.T) {
	r, s := installed(t)
	if err := RemoveProgram(r.at(r.Program)); err != nil {
		t.Fatal(err)
	}
	r.Program = ""
	r.runs(t, "2", running)
	if left, err := r.Remove(s); err != nil || !slices.Contains(left.Pods, running) {
		t.Errorf("left are %v, %v", left, err)
	}
	for _, file := range r.files(t) {
		if strings.HasPrefix(file, "/opt/nri/") {
			t.Errorf("%s was made", file)
		}
	}
}

// TestRemoveLeavesFilesOfOthers checks that Remove keeps files of other programs in the configured
// directories.
func TestRemoveLeavesFilesOfOthers(t *testing.T) {
	r, s := installed(t)
	for _, path := range []string{
		"/opt/nri-vgpu/.installing-12/libcuda.so.1", "/run/nri-vgpu/.node.json123", "/run/nri-vgpu/admin.sock",
		"/run/nri-vgpu/metrics.sock", "/run/nri-vgpu/driver.json", "/run/nri-vgpu/mps/daemon.json", "/run/nri-vgpu/usage/empty",
		"/var/lib/nri-vgpu/contexts.json", "/var/lib/nri-vgpu/.pods.json4",
	} {
		write(t, r.at(path), "")
	}
	others := []string{
		"/etc/other",
		"/opt/nri-vgpu/cuda/libcuda.so.1", "/opt/nri-vgpu/empty/ld.so.preload", "/opt/nri-vgpu/ld.so.preload",
		"/run/nri-vgpu/.containers", "/run/nri-vgpu/.node.json", "/run/nri-vgpu/nodes.json",
		"/var/lib/nri-vgpu/.mps1b", "/var/lib/nri-vgpu/kubelet/pods",
	}
	for _, path := range others {
		write(t, r.at(path), "")
	}
	r.runs(t, "2", running)
	left, err := r.Remove(s)
	if err != nil || !slices.Contains(left.Pods, running) {
		t.Fatalf("left are %v, %v", left, err)
	}
	for _, path := range others {
		if !slices.Contains(r.files(t), path) {
			t.Errorf("%s was removed while a pod runs", path)
		}
	}

	if err := errors.Join(os.RemoveAll(filepath.Join(r.Proc, "2")), os.RemoveAll(r.at("/var/lib/kubelet"))); err != nil {
		t.Fatal(err)
	}
	left, err = r.Remove(s)
	if err != nil || len(left.Pods) != 0 {
		t.Fatalf("left are %v, %v", left, err)
	}
	if diff := cmp.Diff(others, r.files(t)); diff != "" {
		t.Errorf("left in the end (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{s.InstallDir, s.StateDir, s.RunDir}, left.Others); diff != "" {
		t.Errorf("reported as left (-want +got):\n%s", diff)
	}
}

// TestRemoveNeedsToSeeProcesses checks that no pod counts as dead if no processes are visible.
func TestRemoveNeedsToSeeProcesses(t *testing.T) {
	r, s := installed(t)
	r.Proc = t.TempDir()
	before := r.files(t)
	if _, err := r.Remove(s); err == nil {
		t.Error("everything was removed without a look")
	}
	if diff := cmp.Diff(before, r.files(t)); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

// TestAMountIsEmptied checks that remove empties a mount point, because a mount point cannot be
// removed.
func TestAMountIsEmptied(t *testing.T) {
	if !ownmounts.Run(t) {
		return
	}
	dir := ownmounts.Small(t)
	write(t, filepath.Join(dir, "sub", "file"), "")
	if err := remove(dir); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left are %v, %v", left, err)
	}
	// A failed removal is an error.
	write(t, filepath.Join(dir, "sub", "file"), "")
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "size=8m"); err != nil {
		t.Fatal(err)
	}
	if err := remove(filepath.Join(dir, "sub")); err == nil {
		t.Error("a read-only file system is no error")
	}
}

// TestAVersionIsFoundAgain checks that the next attempt recognizes a partially removed version.
func TestAVersionIsFoundAgain(t *testing.T) {
	if !ownmounts.Run(t) {
		return
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "1", paths.Preload), string(paths.PreloadContent()))
	busy := filepath.Join(dir, "1", "drivers")
	write(t, filepath.Join(busy, "library"), "")
	if err := errors.Join(unix.Mount(busy, busy, "", unix.MS_BIND, ""), unix.Mount("", busy, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")); err != nil {
		t.Fatal(err)
	}
	if err := removeVersions(dir); err == nil {
		t.Error("a file that cannot be removed is no error")
	}
	if err := errors.Join(unix.Unmount(busy, 0), removeVersions(dir)); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory: %v", err)
	}
}

func TestListsThatCannotBeReadAreAnError(t *testing.T) {
	r, s := installed(t)
	r.runs(t, "2", running)
	for name, spoil := range map[string]func(string) error{
		"settings": func(root string) error {
			return os.WriteFile(paths.GuardSettings(filepath.Join(root, r.Program)), []byte("{"), 0o600)
		},
		"asking":    func(root string) error { return replaceByDir(paths.AskingPods(filepath.Join(root, s.StateDir))) },
		"container": func(root string) error { return replaceByFile(filepath.Join(root, paths.Containers(s.RunDir))) },
	} {
		t.Run(name, func(t *testing.T) {
			r, s := installed(t)
			r.runs(t, "2", running)
			if err := spoil(r.Root); err != nil {
				t.Fatal(err)
			}
			before := r.files(t)
			if left, err := r.Remove(s); err == nil {
				t.Errorf("left are %v", left)
			}
			if after := r.files(t); !slices.Equal(before, after) {
				t.Errorf("removed was something: %v are left of %v", after, before)
			}
		})
	}
	// Living ignores a corrupt list.
	if err := os.WriteFile(paths.AskingPods(r.at(s.StateDir)), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if live, err := r.Living(s); err != nil || !slices.Equal(live, []string{running, known}) {
		t.Errorf("live are %v, %v", live, err)
	}
}

func replaceByDir(path string) error {
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	return os.MkdirAll(path, 0o755)
}

func replaceByFile(path string) error {
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	return os.WriteFile(path, nil, fs.FileMode(0o600))
}

func TestAProgramThatCannotBeRemovedIsAnError(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	write(t, filepath.Join(program, "inside"), "")
	if err := RemoveProgram(program); err == nil {
		t.Error("a directory in the program's place is no error")
	}
}
