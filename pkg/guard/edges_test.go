package guard

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
	"github.com/nri-vgpu/nri-vgpu/pkg/runtimes"
	"github.com/nri-vgpu/nri-vgpu/test/ownmounts"
)

// A runtime with NRI 0.12.4 or newer refuses what neither guard answers in time.
func TestNoAnswerIsARefusal(t *testing.T) {
	n := newNode(t)
	guard, standIn := n.guards()
	adaptation.SetPluginRequestTimeout(300 * time.Millisecond)
	defer adaptation.SetPluginRequestTimeout(adaptation.DefaultPluginRequestTimeout)
	for _, pid := range []int{guard, standIn} {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }()
	}
	if _, err := n.create(inPod("u"), wants("all")); err == nil {
		t.Error("all GPUs for whoever comes while the guards hang")
	}
	start := &api.StartContainerRequest{Pod: inPod("u"), Container: &api.Container{Id: "c", Name: "main"}}
	if err := n.runtime.StartContainer(t.Context(), start); err == nil {
		t.Error("a container was started at which no guard has looked")
	}
}

// refused is why a container was refused by a guard in this process.
func refused(t *testing.T, g *Guard, c *api.Container) string {
	t.Helper()
	_, _, err := g.CreateContainer(t.Context(), inPod("u"), c)
	if err == nil {
		return ""
	}
	return err.Error()
}

// local is a guard in this process, on a node where nri-vgpu is installed.
func local(t *testing.T) (*Guard, Settings) {
	t.Helper()
	dir := t.TempDir()
	s := SettingsFrom(config.Default())
	s.InstallDir, s.RunDir, s.StateDir = dir, filepath.Join(dir, "run"), filepath.Join(dir, "state")
	program := filepath.Join(dir, layout.GuardProgram)
	if err := s.Write(program); err != nil {
		t.Fatal(err)
	}
	write(t, program, "")
	return New(program), s
}

func TestARefusalSaysWhatToDo(t *testing.T) {
	g, _ := local(t)
	if got := refused(t, g, wants("all")); !strings.Contains(got, "if nri-vgpu was removed, remove "+g.program) {
		t.Errorf("of one that wants every GPU: %q", got)
	}
	long := &api.Container{Name: "main", Env: []string{"LONG=" + strings.Repeat("x", runtimes.MostBytes)}}
	if got := refused(t, g, long); !strings.Contains(got, `container "main"`) || !strings.Contains(got, "mount files instead of long variables") {
		t.Errorf("of one that is too long: %.200q", got)
	}
}

// The news that the guard was configured waits until its status is kept.
func TestAConfiguredGuardHasAStatus(t *testing.T) {
	g, s := local(t)
	if _, err := g.Configure(t.Context(), "", "containerd", "v2.4.2"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { g.keepStatus(ctx); close(done) }()
	var status Status
	eventually(t, func() bool {
		var loaded bool
		status, loaded, _ = Loaded(s.RunDir)
		return loaded && status.PID != 0
	})
	if status.PID != os.Getpid() || status.Runtime != "containerd v2.4.2" {
		t.Errorf("it says %+v", status)
	}
	cancel()
	<-done
	if _, loaded, err := Loaded(s.RunDir); loaded || err != nil {
		t.Errorf("after its end the guard is loaded: %t, %v", loaded, err)
	}
}

func TestEverybodyMayReadTheStatus(t *testing.T) {
	umask := unix.Umask(0)
	defer unix.Umask(umask)
	g, s := local(t)
	held := g.renewStatus(s, nil)
	if held == nil {
		t.Fatal("no status was written")
	}
	defer held.Close()
	if info, err := held.Stat(); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("its rights are %v, %v", info.Mode(), err)
	}
	if again := g.renewStatus(s, held); again != held {
		t.Error("a status that is held was written again")
	}
}

// A status that another guard holds, of an earlier runtime, is left to it.
func TestAStatusHasOneHolder(t *testing.T) {
	g, s := local(t)
	held := g.renewStatus(s, nil)
	if held == nil {
		t.Fatal("no status was written")
	}
	if other := New(g.program).renewStatus(s, nil); other != nil {
		t.Error("two guards hold the status")
	}
	held.Close()
	other := New(g.program).renewStatus(s, nil)
	if other == nil {
		t.Fatal("the status is nobody's")
	}
	if err := os.Remove(layout.GuardStatus(s.RunDir)); err != nil {
		t.Fatal(err)
	}
	again := g.renewStatus(s, other) // closes the other
	if again == nil || again == other {
		t.Fatal("a status that was removed was not written again")
	}
	again.Close()
}

func TestAStatusThatCannotBeReadIsAnError(t *testing.T) {
	dir := t.TempDir()
	if _, loaded, err := Loaded(dir); loaded || err != nil {
		t.Errorf("without one: %t, %v", loaded, err)
	}
	write(t, filepath.Join(dir, "file"), "")
	if _, _, err := Loaded(filepath.Join(dir, "file")); err == nil {
		t.Error("of a directory that is a file it is no error")
	}
}

func TestAGuardThatCannotBeSetUpIsAnError(t *testing.T) {
	g, _ := local(t)
	if err := g.Run(t.Context(), stub.WithPluginName(""), stub.WithPluginIdx("")); err == nil || !strings.Contains(err.Error(), "set up the guard") {
		t.Errorf("without a name: %v", err)
	}
	if err := StartStandIn(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("a stand-in without a program was started")
	}
}

// What pods may still use is removed when kubelet shows that they have gone, and without
// kubelet's directory, as after a boot, only when it has had time to start them again.
func TestRemovalAwaitsKubelet(t *testing.T) {
	if !ownmounts.Run(t) {
		return
	}
	for name, tt := range map[string]struct {
		retiring []string
		kubelet  bool
		removed  bool
	}{
		"kubelet has no such pod":      {[]string{gone}, true, true},
		"kubelet has not started yet":  {[]string{gone}, false, false},
		"nothing is being removed":     {nil, true, false},
		"nothing, and without kubelet": {nil, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := unix.Mount("lib", "/var/lib", "tmpfs", 0, ""); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = unix.Unmount("/var/lib", unix.MNT_DETACH) }()
			if tt.kubelet {
				if err := os.MkdirAll(kubeletPods, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			g, s := local(t)
			s.Retiring = tt.retiring
			if err := s.Write(g.program); err != nil {
				t.Fatal(err)
			}
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			g.AwaitRemoval(ended) // looks once
			if _, err := os.Stat(g.program); os.IsNotExist(err) != tt.removed {
				t.Errorf("the program: %v", err)
			}
		})
	}
}

// A directory that is a mount of its own cannot be removed, and is emptied.
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
	// What cannot be removed is an error.
	write(t, filepath.Join(dir, "sub", "file"), "")
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "size=8m"); err != nil {
		t.Fatal(err)
	}
	if err := remove(filepath.Join(dir, "sub")); err == nil {
		t.Error("of a file system that cannot be written it is no error")
	}
}

func TestListsThatCannotBeReadAreAnError(t *testing.T) {
	r, s := installed(t)
	r.runs(t, "2", running)
	for name, spoil := range map[string]func(string) error{
		"settings": func(root string) error {
			return os.WriteFile(layout.GuardSettings(filepath.Join(root, r.Program)), []byte("{"), 0o600)
		},
		"asking":    func(root string) error { return replaceByDir(layout.AskingPods(filepath.Join(root, s.StateDir))) },
		"container": func(root string) error { return replaceByFile(filepath.Join(root, layout.Containers(s.RunDir))) },
	} {
		t.Run(name, func(t *testing.T) {
			r, s := installed(t)
			r.runs(t, "2", running)
			if err := spoil(r.Root); err != nil {
				t.Fatal(err)
			}
			before := r.files(t)
			if live, err := r.Remove(s); err == nil {
				t.Errorf("live are %v", live)
			}
			if after := r.files(t); !slices.Equal(before, after) {
				t.Errorf("removed was something: %v are left of %v", after, before)
			}
		})
	}
	// What of that was never there, or is corrupt and so trusted by nobody, is no obstacle.
	if err := os.WriteFile(layout.AskingPods(r.at(s.StateDir)), []byte("{"), 0o600); err != nil {
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

func TestAListThatCannotBeRemovedIsAnError(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(layout.AskingPods(dir), "inside"), "")
	if err := RemoveAsking(dir); err == nil {
		t.Error("a directory in its place is no error")
	}
	program := filepath.Join(dir, "program")
	write(t, filepath.Join(program, "inside"), "")
	if err := RemoveProgram(program); err == nil {
		t.Error("a directory in the program's place is no error")
	}
}
