// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/nri-vgpu/nri-vgpu/internal/container/ourfiles"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/test/mountns"
	"github.com/nri-vgpu/nri-vgpu/test/timed"
)

// inTime checks that an answer arrives within a second: the runtime waits for two seconds.
func inTime(t testing.TB, what string, ask func() error, refused bool) {
	t.Helper()
	begin := time.Now()
	err := ask()
	if took := time.Since(begin); took > time.Second {
		t.Errorf("%s took %v", what, took)
	}
	if (err != nil) != refused || err != nil && (strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "nri-vgpu's guard refuses")) {
		t.Errorf("%s: %v", what, err)
	}
}

// TestTheHostsFilesHang checks that the guard and its stand-in refuse undecided containers in time,
// so that the runtime drops neither of them.
func TestTheHostsFilesHang(t *testing.T) {
	t.Parallel()
	timed.Run(t, testTheHostsFilesHang)
}

func testTheHostsFilesHang(t testing.TB) {
	n := newNode(t)
	ask := func() error { _, err := n.create(inPod("u"), &api.Container{}); return err }
	inTime(t, "at first", ask, false)
	free := mountns.Hang(t, n.settings.InstallDir)
	inTime(t, "while files hang", ask, false) // the root of the hanging file system still answers
	free()
	dir := filepath.Join(n.dir, "hangs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	n.settings.StateDir = dir
	n.write()
	free = mountns.Hang(t, dir)
	for range 3 {
		inTime(t, "while the list of pods hangs", ask, true)
	}
	free()
	n.settings.StateDir = t.TempDir()
	n.write()
	inTime(t, "at last", ask, false)
}

// TestAStartWithAnImageThatHangs checks that neither the guard nor its stand-in allows the start of
// a limited container whose image hangs.
func TestAStartWithAnImageThatHangs(t *testing.T) {
	t.Parallel()
	timed.Run(t, testAStartWithAnImageThatHangs)
}

func testAStartWithAnImageThatHangs(t testing.TB) {
	n := newNode(t)
	c := &api.Container{Id: "c", Name: "main"}
	own := filepath.Join(paths.Containers(n.settings.RunDir), "u", "main")
	var binds []mountns.Bind
	for _, destination := range ourfiles.Required {
		source := filepath.Join(own, filepath.Base(destination))
		if err := os.MkdirAll(own, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(source, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		binds = append(binds, mountns.Bind{From: source, To: destination})
		c.Mounts = append(c.Mounts, &api.Mount{Source: source, Destination: destination, Type: "bind"})
	}
	image := t.TempDir()
	if err := os.Mkdir(filepath.Join(image, "tmp"), 0o755); err != nil {
		t.Fatal(err)
	}
	box := mountns.New(t, image, binds...)
	c.Pid = uint32(box.PID)
	start := func() error {
		return n.runtime.StartContainer(context.Background(), &api.StartContainerRequest{Pod: inPod("u"), Container: c})
	}
	inTime(t, "StartContainer", start, false)
	box.Do("hang", "/tmp")
	box.Do("chroot", "/tmp")
	for range 3 {
		inTime(t, "StartContainer of an image that hangs", start, true)
	}
}
