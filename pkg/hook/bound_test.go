// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/nri-vgpu/nri-vgpu/internal/container/ourfiles"
	"github.com/nri-vgpu/nri-vgpu/internal/daemon"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/mountns"
	"github.com/nri-vgpu/nri-vgpu/test/timed"
)

// promised is the time within which every handler answers.
const promised = time.Second

// inTime checks that the runtime gets an answer in time, and that the plugin stays
// registered.
func inTime(t testing.TB, what string, ask func() error, refused bool) {
	t.Helper()
	begin := time.Now()
	err := ask()
	if took := time.Since(begin); took > promised {
		t.Errorf("%s took %v", what, took)
	}
	if (err != nil) != refused {
		t.Errorf("%s: %v", what, err)
	}
	if err != nil && (strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "kubelet will retry")) {
		t.Errorf("%s: the refusal is %q", what, err)
	}
}

// TestEveryHandlerAnswersWhileAFileSystemHangs checks that all handlers answer in time and process
// every notification although one handler hangs. The handler writes a container's files to a
// hanging file system, and holds the lock that the other handlers need.
func TestEveryHandlerAnswersWhileAFileSystemHangs(t *testing.T) {
	t.Parallel()
	timed.Run(t, testEveryHandlerAnswersWhileAFileSystemHangs)
}

func testEveryHandlerAnswersWhileAFileSystemHangs(t testing.TB) {
	n := newNode(t)
	for _, uid := range []string{"hangs", "waits", "runs"} {
		n.pod(uid, "main=1024")
	}
	n.pod("plain", "main")
	running := mustCreate(t, n, "runs")
	dir := filepath.Join(n.cfg.Paths.RunDir, "containers", "hangs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	free := mountns.Hang(t, dir)
	ctx := context.Background()
	pod := sandbox("runs")
	container := fromSpec(pod, "main", running)
	create := func(uid string) func() error {
		return func() error { _, err := n.create(uid); return err }
	}
	inTime(t, "CreateContainer that hangs", create("hangs"), true)
	inTime(t, "CreateContainer of another", create("waits"), true)
	inTime(t, "CreateContainer of a pod that requests nothing", create("plain"), false)
	inTime(t, "StartContainer", func() error {
		return n.runtime.StartContainer(ctx, &api.StartContainerRequest{Pod: pod, Container: container})
	}, true)
	inTime(t, "PostStartContainer", func() error {
		return n.runtime.PostStartContainer(ctx, &api.PostStartContainerRequest{Pod: pod, Container: container})
	}, false)
	inTime(t, "StopContainer", func() error {
		_, err := n.runtime.StopContainer(ctx, &api.StopContainerRequest{Pod: pod, Container: container})
		return err
	}, false)
	inTime(t, "RemoveContainer", func() error {
		return n.runtime.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: pod, Container: container})
	}, false)
	inTime(t, "StopPodSandbox", func() error {
		return n.runtime.StopPodSandbox(ctx, &api.StopPodSandboxRequest{Pod: pod})
	}, false)
	inTime(t, "RemovePodSandbox", func() error {
		return n.runtime.RemovePodSandbox(ctx, &api.RemovePodSandboxRequest{Pod: pod})
	}, false)
	e := &edge{Hook: n.hook, synced: make(chan struct{})}
	begin := time.Now()
	if _, err := e.Synchronize(ctx, nil, nil); err == nil || time.Since(begin) > promised {
		t.Errorf("Synchronize answered after %v: %v", time.Since(begin), err)
	}
	if n.hook.Stuck() < promised {
		t.Errorf("the liveness probe reports that a handler runs for %v", n.hook.Stuck())
	}

	free()
	eventually.Holds(t, 10*time.Second, "no handler hangs", func() bool { return n.hook.Stuck() == 0 })
	if _, live := n.hook.Holders()[container.GetId()]; live {
		t.Error("a container is live, although the runtime reported its end")
	}
	if _, err := n.create("waits"); err != nil {
		t.Error(err)
	}
}

// TestALogThatHangsKeepsNoHandlerWaiting checks that a full pipe of the log delays no handler. The
// runtime reads the pipe, and stops reading when its disk hangs.
func TestALogThatHangsKeepsNoHandlerWaiting(t *testing.T) {
	t.Parallel()
	timed.Run(t, testALogThatHangsKeepsNoHandlerWaiting)
}

func testALogThatHangsKeepsNoHandlerWaiting(t testing.TB) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	log, err := daemon.Logger(config.Log{Level: "info"}, write)
	if err != nil {
		t.Fatal(err)
	}
	n := newNode(t, func(n *node) { n.log = log })
	n.pod("u", "main=1024")
	for k := range 200 {
		begin := time.Now()
		_, err := n.create("u", addMount("/run/nri-vgpu/"+strings.Repeat("x", 1024)))
		if took := time.Since(begin); err == nil || took > promised {
			t.Fatalf("refusal %d took %v: %v", k, took, err)
		}
	}
	inTime(t, "CreateContainer", func() error { _, err := n.create("u"); return err }, false)
}

// TestValidationDoesNotWait checks that the validation needs no lock that other handlers hold.
func TestValidationDoesNotWait(t *testing.T) {
	timed.Run(t, testValidationDoesNotWait)
}

func testValidationDoesNotWait(t testing.TB) {
	n := newNode(t)
	spec := n.run("u", "main=1024")
	n.hook.mu.Lock()
	defer n.hook.mu.Unlock()
	e := &edge{Hook: n.hook}
	begin := time.Now()
	err := e.ValidateContainerAdjustment(t.Context(), &api.ValidateContainerAdjustmentRequest{
		Pod: sandbox("u"), Container: fromSpec(sandbox("u"), "main", spec),
	})
	if err != nil || time.Since(begin) > promised {
		t.Errorf("after %v: %v", time.Since(begin), err)
	}
}

// TestTheAPIServerHangs checks that the wait for a hanging API server ends within the bound.
func TestTheAPIServerHangs(t *testing.T) {
	t.Parallel()
	timed.Run(t, testTheAPIServerHangs)
}

func testTheAPIServerHangs(t testing.TB) {
	n := newNode(t)
	n.api.change(func() { n.api.away = true })
	inTime(t, "CreateContainer", func() error {
		_, err := n.create("unknown")
		if err == nil || !strings.Contains(err.Error(), "whether the node reaches the API server") {
			t.Errorf("the refusal does not name the API server: %v", err)
		}
		return err
	}, true)
}

// boxed creates a mount namespace with other mounts, and then a container's files at the paths where the
// runtime mounts them.
func boxed(t testing.TB, n *node, spec *rspec.Spec, binds ...mountns.Bind) *mountns.Namespace {
	t.Helper()
	image := t.TempDir()
	if err := os.Mkdir(filepath.Join(image, "tmp"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{paths.CUDALibrary, paths.NVMLLibrary, paths.Vgpuctl, paths.Preload} {
		write(t, filepath.Join(n.cfg.Paths.InstallDir, "1", name), name)
	}
	if err := os.MkdirAll(filepath.Join(n.cfg.Paths.InstallDir, "1", paths.StandIns), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, m := range ourfiles.Ours(describe(nil, &api.Container{Mounts: api.FromOCIMounts(spec.Mounts)}).Mounts) {
		binds = append(binds, mountns.Bind{From: m.Source, To: m.Destination})
	}
	return mountns.New(t, image, binds...)
}

// TestAStartWithAnImageThatHangs checks that the hook refuses to start a container whose image
// hangs, and answers within the bound.
func TestAStartWithAnImageThatHangs(t *testing.T) {
	t.Parallel()
	timed.Run(t, testAStartWithAnImageThatHangs)
}

func testAStartWithAnImageThatHangs(t testing.TB) {
	n := newNode(t)
	spec := n.run("u", "main=1024")
	box := boxed(t, n, spec)
	start := func() error {
		pod := sandbox("u")
		container := fromSpec(pod, "main", spec)
		container.Pid = uint32(box.PID)
		return n.runtime.StartContainer(context.Background(), &api.StartContainerRequest{Pod: pod, Container: container})
	}
	inTime(t, "StartContainer", start, false)
	box.Do("hang", "/tmp")
	box.Do("chroot", "/tmp")
	inTime(t, "StartContainer of an image that hangs", start, true)
	inTime(t, "StartContainer, again", start, true)
	if n.hook.Stuck() != 0 {
		t.Error("a tenant's file system keeps a handler, and with it the liveness probe")
	}
}
