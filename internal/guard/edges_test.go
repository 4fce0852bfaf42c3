// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/internal/nri"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/internal/uninstall/nodefiles"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/ownmounts"
)

// TestNoAnswerIsARefusal checks that a runtime with NRI 0.12.4 or newer refuses a container if
// neither the guard nor the stand-in answers in time.
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
		t.Error("a container got all GPUs while the guards hang")
	}
	start := &api.StartContainerRequest{Pod: inPod("u"), Container: &api.Container{Id: "c", Name: "main"}}
	if err := n.runtime.StartContainer(t.Context(), start); err == nil {
		t.Error("a container was started at which no guard has looked")
	}
}

// refused returns the error with which a guard in this process refuses a container.
func refused(t *testing.T, g *Guard, c *api.Container) string {
	t.Helper()
	_, _, err := g.CreateContainer(t.Context(), inPod("u"), c)
	if err == nil {
		return ""
	}
	return err.Error()
}

// local returns a guard in this process, on a node with an installation of nri-vgpu.
func local(t *testing.T) (*Guard, guardfile.Settings) {
	t.Helper()
	dir := t.TempDir()
	s := guardfile.SettingsFrom(config.Default())
	s.InstallDir, s.RunDir, s.StateDir = dir, filepath.Join(dir, "run"), filepath.Join(dir, "state")
	program := filepath.Join(dir, paths.GuardProgram)
	if err := s.Write(program); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return New(program), s
}

func TestARefusalNamesTheRemedy(t *testing.T) {
	g, _ := local(t)
	if got := refused(t, g, wants("all")); !strings.Contains(got, "if nri-vgpu was removed, remove "+g.program) {
		t.Errorf("a container that requests every GPU: %q", got)
	}
	long := &api.Container{Name: "main", Env: []string{"LONG=" + strings.Repeat("x", nri.MostBytes)}}
	if got := refused(t, g, long); !strings.Contains(got, `container "main"`) || !strings.Contains(got, "mount files instead of long variables") {
		t.Errorf("a container that is too long: %.200q", got)
	}
}

// TestAConfiguredGuardHasAStatus checks that the wakeup of Configure stays pending until keepStatus
// handles it.
func TestAConfiguredGuardHasAStatus(t *testing.T) {
	g, s := local(t)
	if _, err := g.Configure(t.Context(), "", "containerd", "v2.4.2"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { g.keepStatus(ctx); close(done) }()
	var status guardfile.Status
	eventually.Holds(t, 10*time.Second, "the status has the guard's pid", func() bool {
		var loaded bool
		status, loaded, _ = guardfile.Loaded(s.RunDir)
		return loaded && status.PID != 0
	})
	if status.PID != os.Getpid() || status.Runtime != "containerd v2.4.2" {
		t.Errorf("got %+v", status)
	}
	cancel()
	<-done
	if _, loaded, err := guardfile.Loaded(s.RunDir); loaded || err != nil {
		t.Errorf("after its end the guard is loaded: %t, %v", loaded, err)
	}
}

// TestARemovedStatusComesBack checks that the guard writes a removed status again within two
// seconds. A new /run lacks the status.
func TestARemovedStatusComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, s := local(t)
		if _, err := g.Configure(t.Context(), "", "containerd", "v2.4.2"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go g.keepStatus(ctx)
		loaded := func() bool {
			synctest.Wait()
			_, loaded, _ := guardfile.Loaded(s.RunDir)
			return loaded
		}
		if !loaded() {
			t.Fatal("the guard has no status")
		}
		if err := os.RemoveAll(s.RunDir); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2*time.Second - time.Nanosecond)
		if loaded() {
			t.Error("its status is back early")
		}
		time.Sleep(time.Nanosecond)
		if !loaded() {
			t.Error("its status is not back")
		}
	})
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
	if info, err := os.Stat(s.RunDir); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the rights of its directory are %v, %v", info.Mode(), err)
	}
	if again := g.renewStatus(s, held); again != held {
		t.Error("a status that is held was written again")
	}
}

// TestAStatusHasOneHolder checks that a guard does not take over a status that an earlier runtime's
// guard still holds.
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
		t.Fatal("the status names no process")
	}
	if err := os.Remove(paths.GuardStatus(s.RunDir)); err != nil {
		t.Fatal(err)
	}
	again := g.renewStatus(s, other) // closes other
	if again == nil || again == other {
		t.Fatal("a status that was removed was not written again")
	}
	again.Close()
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

// TestRemovalAwaitsKubelet checks when the guard removes files that pods may still use. The guard
// removes the files once kubelet reports that the pods have gone. If kubelet has no directory, as
// after a boot, the guard first waits until kubelet has had time to restart pods.
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
				if err := os.MkdirAll(nodefiles.KubeletPods, 0o755); err != nil {
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
			g.AwaitRemoval(ended) // AwaitRemoval checks once
			if _, err := os.Stat(g.program); os.IsNotExist(err) != tt.removed {
				t.Errorf("the program: %v", err)
			}
		})
	}
}
