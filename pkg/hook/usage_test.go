// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/test/ownmounts"
)

// newMountingNode returns a node with a small /run, and the path of /run.
func newMountingNode(t *testing.T) (*node, string) {
	t.Helper()
	run := ownmounts.Small(t)
	return newNode(t, func(n *node) {
		n.mounts = true
		n.cfg.Paths.RunDir = filepath.Join(run, "nri-vgpu")
	}), run
}

func room(t *testing.T, path string) (free uint64) {
	t.Helper()
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		t.Fatal(err)
	}
	return s.Bfree * uint64(s.Bsize)
}

func TestUsagePagesAreMountedAndUnmounted(t *testing.T) {
	if !ownmounts.Run(t) {
		return
	}
	n, run := newMountingNode(t)
	n.pod("u", "main=4096", "side=1024")
	pages := map[string]bool{}
	// Each of three agents creates the containers.
	for range 3 {
		for _, name := range []string{"main", "side"} {
			spec, err := n.createIn(sandbox("u"), name)
			if err != nil {
				t.Fatal(err)
			}
			mount, _ := mountAt(spec, paths.ContainerUsage)
			page, err := filepath.EvalSymlinks(mount.Source)
			if err != nil || pages[page] {
				t.Errorf("its page is %s again, %v", page, err)
			}
			pages[page] = true
			if info, err := os.Stat(page); err != nil || info.Mode().Perm() != 0o666 {
				t.Errorf("its page has mode %v, %v", info.Mode(), err)
			}
			var own unix.Statfs_t
			if err := unix.Statfs(page, &own); err != nil || int64(own.Blocks)*own.Bsize != limits.UsageBytes {
				t.Errorf("its file system has %d bytes, want those of the page, %v", int64(own.Blocks)*own.Bsize, err)
			}
			before := room(t, run)
			if err := unix.Fallocate(openPage(t, page), 0, 0, 4<<20); !errors.Is(err, unix.ENOSPC) || room(t, run) != before {
				t.Errorf("it can grow: %v", err)
			}
			if _, err := limits.ReadUsage(mount.Source); err != nil {
				t.Error(err)
			}
		}
		points := ownmounts.Mounted(t, run)
		if len(points) != 2 {
			t.Fatalf("mounted are %v, want two", points)
		}
		n.restartHook()
		if now := ownmounts.Mounted(t, run); !slices.Equal(now, points) {
			t.Errorf("beside another agent mounted are %v, want %v", now, points)
		}
	}
	if _, err := n.hook.opts.Store.Usage.Make("nobody", "main"); err != nil {
		t.Fatal(err)
	}
	n.deletePod("u")
	n.mu.Lock()
	n.containers = nil
	n.mu.Unlock()
	n.restartHook()
	n.hook.Sweep()
	if left := ownmounts.Mounted(t, run); len(left) != 0 {
		t.Errorf("usage pages of pods that are gone are mounted: %v", left)
	}
	if left, err := n.hook.opts.Store.Pods(); err != nil || len(left) != 0 {
		t.Errorf("files of pods that are gone: %v, %v", left, err)
	}
}

func openPage(t *testing.T, path string) int {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return int(f.Fd())
}

// TestWithoutRoomAContainerIsRefused checks that the hook refuses a container if the file system is
// full, and that the container's previous pages remain.
func TestWithoutRoomAContainerIsRefused(t *testing.T) {
	if !ownmounts.Run(t) {
		return
	}
	n, run := newMountingNode(t)
	n.pod("u", "main=4096")
	n.pod("v", "main=4096")
	mustCreate(t, n, "u")
	dir, err := n.hook.opts.Store.Dir("u", "main")
	if err != nil {
		t.Fatal(err)
	}
	page := func() string {
		t.Helper()
		path, err := filepath.EvalSymlinks(filepath.Join(dir, limits.UsageFile))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := limits.ReadUsage(path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	before, points := page(), ownmounts.Mounted(t, run)
	full := filepath.Join(run, "full")
	fd, err := unix.Open(full, unix.O_CREAT|unix.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Fallocate(fd, 0, 0, int64(room(t, run))); err != nil {
		t.Fatal(err)
	}
	for _, pod := range []string{"u", "v"} {
		_, err := n.create(pod)
		if err == nil || !strings.Contains(err.Error(), "free some of paths.run_dir's file system") || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v", err)
		}
	}
	if now := ownmounts.Mounted(t, run); page() != before || !slices.Equal(now, points) {
		t.Errorf("its page is %s, want %s; mounted are %v, want %v", page(), before, now, points)
	}
	files, err := filepath.Glob(filepath.Join(run, "nri-vgpu", "containers", "v", "*", "*"))
	if err != nil || len(files) != 0 {
		t.Errorf("the refused container has the files %v, %v", files, err)
	}
	if err := errors.Join(unix.Close(fd), os.Remove(full)); err != nil {
		t.Fatal(err)
	}
	mustCreate(t, n, "v")
	mustCreate(t, n, "u")
	if page() == before || len(ownmounts.Mounted(t, run)) != 2 {
		t.Errorf("once there is room, its page is %s; mounted are %v", page(), ownmounts.Mounted(t, run))
	}
}
