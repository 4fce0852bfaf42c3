package guard

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
)

const (
	running = "0fc30b6a-0000-4000-8000-00000000000a" // has processes
	known   = "0fc30b6a-0000-4000-8000-00000000000b" // only kubelet knows it, as after a boot
	pending = "0fc30b6a-0000-4000-8000-00000000000c" // asks, and has a sandbox
	gone    = "0fc30b6a-0000-4000-8000-00000000000d"
)

// installed is a node on which nri-vgpu was, as /host in a container.
func installed(t *testing.T) (Remover, Settings) {
	t.Helper()
	root, proc := t.TempDir(), t.TempDir()
	s := SettingsFrom(config.Default())
	r := Remover{Root: root, Proc: proc, Program: filepath.Join("/opt/nri/plugins", layout.GuardProgram)}
	for path, content := range map[string]string{
		"/opt/nri-vgpu/1/libcuda.so.1":               "",
		"/run/nri-vgpu/node.json":                    "",
		"/run/nri-vgpu/agent/agent.sock":             "",
		"/run/nri-vgpu/guard.json":                   "",
		"/var/lib/nri-vgpu/mps/control.log":          "",
		"/etc/other":                                 "",
		"/var/lib/kubelet/pods/" + known + "/volume": "",
		r.Program: "",
		layout.Containers(s.RunDir) + "/" + running + "/main/limits": "",
		layout.Containers(s.RunDir) + "/" + known + "/main/limits":   "",
		layout.Containers(s.RunDir) + "/" + gone + "/main/limits":    "",
	} {
		write(t, filepath.Join(root, path), content)
	}
	if err := s.Write(filepath.Join(root, r.Program)); err != nil {
		t.Fatal(err)
	}
	if err := WriteAsking(filepath.Join(root, s.StateDir), []Pod{{UID: running}, {UID: pending}, {UID: gone}}); err != nil {
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

// runs gives a pod a process, in either of the ways in which cgroups are named.
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
	// As often as one likes, also when it no longer knows who asked.
	for range 2 {
		live, err := r.Remove(s)
		if err != nil || !slices.Equal(live, []string{running, known, pending}) {
			t.Fatalf("live are %v, %v", live, err)
		}
	}
	want := []string{
		"/etc/other",
		r.Program, layout.GuardSettings(r.Program),
		"/opt/nri-vgpu/1/libcuda.so.1",
		layout.Containers(s.RunDir) + "/" + running + "/main/limits",
		layout.Containers(s.RunDir) + "/" + known + "/main/limits",
		"/run/nri-vgpu/guard.json",
		"/var/lib/kubelet/pods/" + known + "/volume",
	}
	if diff := cmp.Diff(want, r.files(t)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	left, err := readSettings(layout.GuardSettings(r.at(r.Program)))
	if err != nil || !slices.Equal(left.Retiring, []string{running, known, pending}) {
		t.Errorf("the guard watches over %v, %v", left.Retiring, err)
	}

	// The guard goes on with what it finds in its settings.
	for _, path := range []string{filepath.Join(r.Proc, "2"), filepath.Join(r.Proc, "3"), r.at("/var/lib/kubelet")} {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	if live, err := r.Remove(left); err != nil || len(live) != 0 {
		t.Fatalf("live are %v, %v", live, err)
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
	if live, err := r.Remove(s); err != nil || !slices.Contains(live, running) {
		t.Errorf("live are %v, %v", live, err)
	}
	for _, file := range r.files(t) {
		if strings.HasPrefix(file, "/opt/nri/") {
			t.Errorf("%s was made", file)
		}
	}
}

// Where processes cannot be seen, no pod is taken for dead.
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

func TestARetiringGuardRefusesItsPodsAlone(t *testing.T) {
	s := SettingsFrom(config.Default())
	s.Retiring = []string{running}
	for _, env := range [][]string{nil, {"NVIDIA_VISIBLE_DEVICES=all"}} {
		_, err := s.Judge(Container{PodUID: running, Name: "main", Env: env}, true)
		if err == nil || !strings.Contains(err.Error(), "delete its pod") {
			t.Errorf("with %q a container that nobody limits: %v", env, err)
		}
		if hide, err := s.Judge(Container{PodUID: gone, Name: "main", Env: env}, true); hide || err != nil {
			t.Errorf("with %q a container of another pod: hidden %t, %v", env, hide, err)
		}
	}
}

// A guard that was removed ends, and its stand-in.
func TestARemovedGuardEnds(t *testing.T) {
	n := newNode(t)
	processes := func() int {
		count := 0
		files, err := filepath.Glob("/proc/[0-9]*/exe")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if program, err := os.Readlink(file); err == nil && strings.TrimSuffix(program, " (deleted)") == n.program {
				count++
			}
		}
		return count
	}
	eventually(t, func() bool { return processes() == 2 })
	if err := RemoveProgram(n.program); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return processes() == 0 })
}
