// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/nri-vgpu/nri-vgpu/internal/container/ourfiles"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
	"github.com/nri-vgpu/nri-vgpu/test/mountns"
)

const testPID = 4711

// builtContainer returns a container with limits in its state before the start.
// The container's files are on the host, and symbolic links in root represent
// mounts.
func builtContainer(t testing.TB) (c adjust.Container, proc, root string) {
	t.Helper()
	host := t.TempDir()
	proc = filepath.Join(host, "proc")
	root = filepath.Join(proc, strconv.Itoa(testPID), "root")
	c = adjust.Container{Name: "main", PID: testPID}
	for _, destination := range append(slices.Clone(ourfiles.Required), paths.ContainerStandIns) {
		source := filepath.Join(host, "sources", destination)
		write(t, source, destination)
		mustLink(t, source, filepath.Join(root, destination))
		c.Mounts = append(c.Mounts, adjust.Mount{Source: source, Destination: destination})
	}
	return c, proc, root
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func mustLink(t testing.TB, from, to string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(from, to); err != nil {
		t.Fatal(err)
	}
}

func TestWhatAContainerFindsAtOurPaths(t *testing.T) {
	tests := []struct {
		name   string
		change func(t *testing.T, c *adjust.Container, root string)
		want   adjust.Reason
	}{
		{"ours", func(*testing.T, *adjust.Container, string) {}, ""},
		{"a pid that the runtime does not report", func(_ *testing.T, c *adjust.Container, _ string) {
			c.PID = 0
			c.Mounts = nil
		}, ""},
		{"another file", func(t *testing.T, _ *adjust.Container, root string) {
			path := filepath.Join(root, paths.ContainerLimits)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			write(t, path, "forged")
		}, adjust.ReasonMount},
		{"nothing", func(t *testing.T, _ *adjust.Container, root string) {
			if err := os.RemoveAll(filepath.Join(root, paths.ContainerHomeDir)); err != nil {
				t.Fatal(err)
			}
		}, adjust.ReasonMount},
		{"a link within the container", func(t *testing.T, _ *adjust.Container, root string) {
			if err := os.Rename(filepath.Join(root, "run"), filepath.Join(root, "elsewhere")); err != nil {
				t.Fatal(err)
			}
			// The link is absolute: it must resolve in the container, not on
			// the host.
			if err := os.Symlink("/elsewhere", filepath.Join(root, "run")); err != nil {
				t.Fatal(err)
			}
		}, ""},
		{"a link to what is ours on the host", func(t *testing.T, c *adjust.Container, root string) {
			path := filepath.Join(root, paths.ContainerLimits)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(c.Mounts[0].Source, path); err != nil {
				t.Fatal(err)
			}
		}, adjust.ReasonMount},
		{"an earlier version's", func(_ *testing.T, c *adjust.Container, _ string) { c.Mounts = c.Mounts[:len(ourfiles.Required)] }, ""},
		{"another stand-in", func(t *testing.T, _ *adjust.Container, root string) {
			path := filepath.Join(root, paths.ContainerStandIns)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			write(t, path, "forged")
		}, adjust.ReasonMount},
		{"not all of ours", func(_ *testing.T, c *adjust.Container, _ string) { c.Mounts = c.Mounts[:4] }, adjust.ReasonUnadjusted},
		{"a process that has ended", func(_ *testing.T, c *adjust.Container, _ string) { c.PID++ }, adjust.ReasonUnadjusted},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, proc, root := builtContainer(t)
			tt.change(t, &c, root)
			checkRefusal(t, checkMounted(c, ourfiles.NewLooks(), proc), tt.want)
		})
	}
}

// TestStartWithHiddenFilesIsRefused checks that the hook checks the files of a container with
// limits before its start.
func TestStartWithHiddenFilesIsRefused(t *testing.T) {
	proc := t.TempDir()
	n := newNode(t, func(n *node) { n.proc = proc })
	for _, name := range []string{paths.CUDALibrary, paths.NVMLLibrary, paths.Vgpuctl, paths.Preload, paths.StandIns} {
		write(t, filepath.Join(n.cfg.Paths.InstallDir, "1", name), name)
	}
	spec := n.run("u", "main=1024")
	root := filepath.Join(proc, strconv.Itoa(testPID), "root")
	for _, m := range spec.Mounts {
		if info, err := os.Stat(m.Source); err == nil && info.Mode().IsRegular() && m.Type == "bind" {
			mustLink(t, m.Source, filepath.Join(root, m.Destination))
		}
	}
	startWithPID := func(spec *rspec.Spec) error {
		pod := sandbox("u")
		container := fromSpec(pod, "main", spec)
		container.Pid = testPID
		return n.runtime.StartContainer(context.Background(), &api.StartContainerRequest{Pod: pod, Container: container})
	}
	if err := startWithPID(spec); err != nil {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(root, paths.ContainerPreload)); err != nil {
		t.Fatal(err)
	}
	if err := startWithPID(spec); err == nil {
		t.Error("it was started without its ld.so.preload")
	}
}

// TestAStartWithAVolumeAboveOurFilesIsRefused checks that the hook refuses to start a container if a
// link in the image leads a volume above nri-vgpu's files.
func TestAStartWithAVolumeAboveOurFilesIsRefused(t *testing.T) {
	n := newNode(t)
	spec := n.run("u", "main=1024")
	container := fromSpec(sandbox("u"), "main", spec)
	container.Pid = uint32(boxed(t, n, spec, mountns.Bind{From: t.TempDir(), To: "/run"}).PID)
	err := n.runtime.StartContainer(t.Context(), &api.StartContainerRequest{Pod: sandbox("u"), Container: container})
	if err == nil || !strings.Contains(err.Error(), "would lie in a volume, by a volumeMount that a link in the image leads to /run") {
		t.Errorf("got %v", err)
	}
}

func BenchmarkCheckMounted(b *testing.B) {
	c, proc, _ := builtContainer(b)
	for b.Loop() {
		if err := checkMounted(c, ourfiles.NewLooks(), proc); err != nil {
			b.Fatal(err)
		}
	}
}

func checkRefusal(t *testing.T, err error, want adjust.Reason) {
	t.Helper()
	var refusal *adjust.RefusalError
	errors.As(err, &refusal)
	switch {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want != "" && (refusal == nil || refusal.Reason != want):
		t.Errorf("got %v, want a refusal for %s", err, want)
	case err != nil && strings.Contains(err.Error(), "\n"):
		t.Errorf("%q is more than a line", err)
	}
}
