package hook

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/containerd/nri/pkg/api"
	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/nri-vgpu/nri-vgpu/pkg/injected"
	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
)

const testPID = 4711

// builtContainer is a container with limits as it is before its start: its
// files on the host, and a root in which links to them stand for mounts.
func builtContainer(t testing.TB) (c Container, proc, root string) {
	t.Helper()
	host := t.TempDir()
	proc = filepath.Join(host, "proc")
	root = filepath.Join(proc, strconv.Itoa(testPID), "root")
	c = Container{Name: "main", PID: testPID}
	for _, destination := range append(slices.Clone(injected.Files), layout.ContainerStandIns) {
		source := filepath.Join(host, "sources", destination)
		write(t, source, destination)
		mustLink(t, source, filepath.Join(root, destination))
		c.Mounts = append(c.Mounts, Mount{Source: source, Destination: destination})
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
		change func(t *testing.T, c *Container, root string)
		want   Reason
	}{
		{"ours", func(*testing.T, *Container, string) {}, ""},
		{"a pid that the runtime does not tell", func(_ *testing.T, c *Container, _ string) {
			c.PID = 0
			c.Mounts = nil
		}, ""},
		{"another file", func(t *testing.T, _ *Container, root string) {
			path := filepath.Join(root, layout.ContainerLimits)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			write(t, path, "forged")
		}, ReasonMount},
		{"nothing", func(t *testing.T, _ *Container, root string) {
			if err := os.RemoveAll(filepath.Join(root, layout.ContainerHomeDir)); err != nil {
				t.Fatal(err)
			}
		}, ReasonMount},
		{"a link within the container", func(t *testing.T, _ *Container, root string) {
			if err := os.Rename(filepath.Join(root, "run"), filepath.Join(root, "elsewhere")); err != nil {
				t.Fatal(err)
			}
			// Absolute: it must lead to the container's, not to the host's.
			if err := os.Symlink("/elsewhere", filepath.Join(root, "run")); err != nil {
				t.Fatal(err)
			}
		}, ""},
		{"a link to what is ours on the host", func(t *testing.T, c *Container, root string) {
			path := filepath.Join(root, layout.ContainerLimits)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(c.Mounts[0].Source, path); err != nil {
				t.Fatal(err)
			}
		}, ReasonMount},
		{"an earlier version's", func(_ *testing.T, c *Container, _ string) { c.Mounts = c.Mounts[:len(injected.Files)] }, ""},
		{"another stand-in", func(t *testing.T, _ *Container, root string) {
			path := filepath.Join(root, layout.ContainerStandIns)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			write(t, path, "forged")
		}, ReasonMount},
		{"not all of ours", func(_ *testing.T, c *Container, _ string) { c.Mounts = c.Mounts[:4] }, ReasonUnadjusted},
		{"a process that has ended", func(_ *testing.T, c *Container, _ string) { c.PID++ }, ReasonUnadjusted},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, proc, root := builtContainer(t)
			tt.change(t, &c, root)
			checkRefusal(t, c.checkMounted(injected.NewLooks(), proc), tt.want)
		})
	}
}

// The check is asked of every container with limits before its start.
func TestStartWithHiddenFilesIsRefused(t *testing.T) {
	proc := t.TempDir()
	n := newNode(t, func(n *node) { n.proc = proc })
	for _, name := range []string{layout.CUDALibrary, layout.NVMLLibrary, layout.Vgpuctl, layout.Preload, layout.StandIns} {
		write(t, filepath.Join(n.cfg.Paths.InstallDir, "1", name), name)
	}
	n.pod("u", "main=1024")
	spec := mustCreate(t, n, "u")
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
	if err := os.Remove(filepath.Join(root, layout.ContainerPreload)); err != nil {
		t.Fatal(err)
	}
	if err := startWithPID(spec); err == nil {
		t.Error("it was started without its ld.so.preload")
	}
}

func BenchmarkCheckMounted(b *testing.B) {
	c, proc, _ := builtContainer(b)
	for b.Loop() {
		if err := c.checkMounted(injected.NewLooks(), proc); err != nil {
			b.Fatal(err)
		}
	}
}
