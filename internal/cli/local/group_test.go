// SPDX-License-Identifier: Apache-2.0

package local

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

const uuid = "GPU-00000000-0000-0000-0000-000000000001"

func ask(memory uint64) []limits.Device {
	return []limits.Device{{UUID: uuid, MemoryBytes: memory, ComputePPM: limits.NoComputeLimit}}
}

func openGroups(t *testing.T) Groups {
	t.Helper()
	g, err := OpenGroups(filepath.Join(t.TempDir(), "groups"))
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func join(t *testing.T, g Groups, name string, want []limits.Device) *Member {
	t.Helper()
	m, err := g.Join(name, want)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func (g Groups) has(name string) bool {
	_, err := os.Stat(filepath.Join(g.Dir(name), limits.LimitsFile))
	return err == nil
}

func TestJoin(t *testing.T) {
	g := openGroups(t)
	first := join(t, g, "lab", ask(1<<30))
	second := join(t, g, "lab", nil)
	third := join(t, g, "lab", ask(1<<30))
	if !first.Founder || second.Founder || third.Founder {
		t.Errorf("founders are %v, %v and %v, want the first alone", first.Founder, second.Founder, third.Founder)
	}
	if second.Devices[0].MemoryBytes != 1<<30 {
		t.Errorf("the second run has %+v, want the group's limits", second.Devices)
	}
	private := join(t, g, "run-1-x", ask(2<<30))
	if got, err := limits.Read(filepath.Join(g.Dir("run-1-x"), limits.LimitsFile)); err != nil || got[0] != private.Devices[0] {
		t.Errorf("the page has %v, %v, want %v", got, err, private.Devices)
	}
}

func TestJoinRefuses(t *testing.T) {
	g := openGroups(t)
	join(t, g, "lab", ask(1<<30))
	damaged := join(t, g, "damaged", ask(1<<30))
	if err := os.WriteFile(filepath.Join(g.Dir("damaged"), limits.LimitsFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	defer damaged.Close()
	tests := []struct {
		name  string
		group string
		want  []limits.Device
		err   string
	}{
		{"other limits", "lab", ask(2 << 30), `group "lab" has other limits (` + uuid + `: 1024 MiB); leave --memory`},
		{"no limits", "new", nil, `group "new" does not exist; set its limits`},
		{"a path", "../x", ask(1), `--group is "../x"; allowed`},
		{"no device at all", "new", []limits.Device{{UUID: "x"}}, "invalid device limit"},
		{"a damaged page", "damaged", nil, `group "damaged": `},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := g.Join(tt.group, tt.want)
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v, want an error with %q", err, tt.err)
			}
		})
	}
	if g.has("new") {
		t.Error("a refused run left a group behind")
	}
}

// TestGroupLivesAsItsMembers checks that the group is removed when the last holder of its lock
// ends. In this test the last holder is a program that inherited the lock and is killed.
func TestGroupLivesAsItsMembers(t *testing.T) {
	g := openGroups(t)
	m := join(t, g, "lab", ask(1<<30))
	program := exec.Command("sleep", "600")
	program.ExtraFiles = []*os.File{m.File}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	m.Close()
	gone := make(chan error, 1)
	go func() { gone <- g.RemoveWhenEmpty("lab") }()

	other := join(t, g, "other", ask(1<<30)) // Join also sweeps
	other.Close()
	select {
	case err := <-gone:
		t.Fatalf("removed while its program runs: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	if !g.has("lab") {
		t.Fatal("swept while its program runs")
	}

	if err := program.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = program.Wait()
	if err := <-gone; err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(g.Dir("lab")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
}

func TestSweep(t *testing.T) {
	g := openGroups(t)
	join(t, g, "abandoned", ask(1<<30)).Close()
	if err := os.Mkdir(g.Dir("half-made"), 0o700); err != nil {
		t.Fatal(err)
	}
	join(t, g, "next", ask(1<<30))
	for _, name := range []string{"abandoned", "half-made"} {
		if _, err := os.Stat(g.Dir(name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("group %q is still there: %v", name, err)
		}
	}
	if !g.has("next") {
		t.Error("the new group is gone")
	}
}

// TestRemoveSparesWhoUsesAGPU checks that a process that closed the lock's file but holds a slot of
// the usage page keeps the group.
func TestRemoveSparesWhoUsesAGPU(t *testing.T) {
	g := openGroups(t)
	join(t, g, "lab", ask(1<<30)).Close()
	page := filepath.Join(g.Dir("lab"), limits.UsageFile)
	usage, err := os.OpenFile(page, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer usage.Close()
	occupy(t, usage)
	if removed, err := g.remove("lab"); removed || err != nil {
		t.Fatalf("removed: %v, %v", removed, err)
	}
	usage.Close()
	if removed, err := g.remove("lab"); !removed || err != nil {
		t.Errorf("not removed: %v, %v", removed, err)
	}
}

// TestRemoveSparesGroupsOfAnotherRelease checks that remove keeps a group whose page has another
// version and thus unreadable slots. The watcher of the other release removes the group.
func TestRemoveSparesGroupsOfAnotherRelease(t *testing.T) {
	g := openGroups(t)
	join(t, g, "lab", ask(1<<30)).Close()
	usage, err := os.OpenFile(filepath.Join(g.Dir("lab"), limits.UsageFile), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer usage.Close()
	const version = 8 // the offset of the layout's version
	if _, err := usage.WriteAt([]byte{2, 0, 0, 0}, version); err != nil {
		t.Fatal(err)
	}
	if removed, err := g.remove("lab"); removed || err != nil {
		t.Errorf("removed: %v, %v", removed, err)
	}
}

// occupy locks every slot of a usage page, as processes on a GPU do, and marks the first
// slot as used.
func occupy(t *testing.T, usage *os.File) {
	t.Helper()
	const highWater = 24 // the offset of the header's count of slots
	if _, err := usage.WriteAt([]byte{1, 0, 0, 0}, highWater); err != nil {
		t.Fatal(err)
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: 4096}
	if err := unix.FcntlFlock(usage.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		t.Fatal(err)
	}
}

func TestOpenGroupsRefusesWhatOthersCanWrite(t *testing.T) {
	shared := filepath.Join(t.TempDir(), "shared")
	if err := os.Mkdir(shared, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(shared, 0o777); err != nil { // despite the umask
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{shared, link} {
		if _, err := OpenGroups(dir); err == nil {
			t.Errorf("%s was accepted", dir)
		}
	}
}

func TestGroupsDir(t *testing.T) {
	runtime := t.TempDir()
	tests := []struct{ xdg, want string }{
		{runtime, runtime + "/nri-vgpu"},
		{runtime + "/absent", "/tmp/nri-vgpu-7"},
		{"", "/tmp/nri-vgpu-7"},
		{".", "/tmp/nri-vgpu-7"},
	}
	for _, tt := range tests {
		if got := GroupsDir(func(string) string { return tt.xdg }, 7); got != tt.want {
			t.Errorf("XDG_RUNTIME_DIR=%q: got %q, want %q", tt.xdg, got, tt.want)
		}
	}
}
