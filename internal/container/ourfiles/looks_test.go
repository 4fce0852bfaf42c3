// SPDX-License-Identifier: Apache-2.0

package ourfiles

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/deadline"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/test/mountns"
)

func TestMain(m *testing.M) {
	mountns.Main()
	os.Exit(m.Run())
}

// box is a container as a runtime makes it, with an image, volumes and our files.
type box struct {
	*testing.T
	image  string
	ours   []Mount
	binds  []mountns.Bind
	mounts []Mount
}

func newBox(t *testing.T) *box {
	t.Helper()
	b := &box{T: t, image: overlay(t)}
	host := t.TempDir()
	for _, destination := range Required {
		source := filepath.Join(host, strings.ReplaceAll(destination, "/", "_"))
		if err := os.WriteFile(source, []byte(destination), 0o644); err != nil {
			t.Fatal(err)
		}
		b.ours = append(b.ours, Mount{Source: source, Destination: destination})
	}
	return b
}

// overlay creates a root file system as runtimes do, from a read-only layer of an image and a
// writable layer.
func overlay(t *testing.T) string {
	t.Helper()
	layer, upper, work, merged := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	for _, dir := range []string{"etc", "run", "usr/local", "tmp"} {
		if err := os.MkdirAll(filepath.Join(layer, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	options := "lowerdir=" + layer + ",upperdir=" + upper + ",workdir=" + work
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(merged, unix.MNT_DETACH) })
	return merged
}

// volume mounts a directory of the host that any user may write to.
func (b *box) volume(at string) (dir string) {
	b.Helper()
	dir = b.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		b.Fatal(err)
	}
	b.binds = append(b.binds, mountns.Bind{From: dir, To: at})
	b.mounts = append(b.mounts, Mount{Source: dir, Destination: at})
	return dir
}

func (b *box) link(to, from string) {
	b.Helper()
	from = filepath.Join(b.image, from)
	_ = os.Remove(from)
	if err := os.MkdirAll(filepath.Dir(from), 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.Symlink(to, from); err != nil {
		b.Fatal(err)
	}
}

func (b *box) start() *mountns.Namespace {
	b.Helper()
	for _, m := range b.ours {
		b.binds = append(b.binds, mountns.Bind{From: m.Source, To: m.Destination})
	}
	b.mounts = append(b.mounts, b.ours...)
	return mountns.New(b, b.image, b.binds...)
}

func (b *box) check(n *mountns.Namespace, want error) error {
	b.Helper()
	return b.wants(NewLooks().Check("u/main", "/proc", n.PID, b.mounts), want)
}

func (b *box) checkRunning(n *mountns.Namespace, want error) {
	b.Helper()
	_ = b.wants(NewLooks().CheckRunning("u/main", "/proc", n.PID, b.ours), want)
}

func (b *box) wants(err, want error) error {
	b.Helper()
	if !errors.Is(err, want) {
		b.Errorf("got %v, want %v", err, want)
	}
	return err
}

func TestVolumesAboveOurFiles(t *testing.T) {
	for _, test := range []struct {
		name     string
		prepare  func(*box)
		volume   string // as the error names it
		detour   bool
		harmless bool
	}{
		{"none", func(*box) {}, "", false, true},
		{"beside", func(b *box) { b.volume("/usr/local/share"); b.volume("/tmp"); b.volume("/run/mine") }, "", false, true},
		{"usr local", func(b *box) { b.volume("/usr/local") }, "/usr/local", false, false},
		{"etc", func(b *box) { b.volume("/etc") }, "/etc", false, false},
		{"run", func(b *box) { b.volume("/run") }, "/run", false, false},
		{"usr", func(b *box) { b.volume("/usr") }, "/usr", false, false},
		{"var run", func(b *box) { b.link("/run", "var/run"); b.volume("/var/run") }, "/run", true, false},
		{"var run by a relative link", func(b *box) { b.link("../run", "var/run"); b.volume("/var/run") }, "/run", true, false},
		{"var run that is no link", func(b *box) { b.volume("/var/run") }, "", false, true},
		{"a link into a volume", func(b *box) { b.link("/data/local", "usr/local"); b.volume("/data") }, "/usr/local", true, false},
		{"a link within the image", func(b *box) { b.link("/opt/local", "usr/local") }, "", false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBox(t)
			test.prepare(b)
			above := CheckAbove(b.mounts)
			n := b.start()
			if test.harmless {
				_ = b.check(n, nil)
				b.checkRunning(n, nil)
				return
			}
			var volume *VolumeError
			if err := b.check(n, ErrVolume); !errors.As(err, &volume) {
				t.Fatal(err)
			}
			if volume.Volume != test.volume || volume.Detour != test.detour {
				t.Errorf("got %+v", volume)
			}
			if !test.detour && (above == nil || above.Error() != volume.Error()) {
				t.Errorf("by its path: %v, by the kernel: %v", above, volume)
			}
			b.checkRunning(n, nil) // as for running containers of an earlier version
		})
	}
}

// TestADirectoryIsRenamed checks that a renamed directory is found. When a directory is renamed,
// the mounts below it move with it.
func TestADirectoryIsRenamed(t *testing.T) {
	b := newBox(t)
	dir := b.volume("/usr/local")
	n := b.start()
	b.checkRunning(n, nil)
	n.Do("rename", "/usr/local/nri-vgpu", "/usr/local/x")
	b.checkRunning(n, ErrHidden)
	n.Do("rename", "/usr/local/x", "/usr/local/nri-vgpu")
	b.checkRunning(n, nil)
	if err := os.Rename(filepath.Join(dir, "nri-vgpu"), filepath.Join(dir, "x")); err != nil { // as from a sidecar
		t.Fatal(err)
	}
	b.checkRunning(n, ErrHidden)
}

// TestASidecarRemovesAMountPoint checks that a removed mount point is found. Removing a file also
// removes mounts on it in other namespaces.
func TestASidecarRemovesAMountPoint(t *testing.T) {
	b := newBox(t)
	dir := b.volume("/etc")
	n := b.start()
	b.checkRunning(n, nil)
	if err := os.Remove(filepath.Join(dir, "ld.so.preload")); err != nil {
		t.Fatal(err)
	}
	b.checkRunning(n, ErrHidden)
}

// TestOurFilesAreTakenAwayInTheImage checks that files that were taken away in the image are found.
// Through /proc/PID/root, a process of another container in the same pid namespace reaches files
// outside volumes.
func TestOurFilesAreTakenAwayInTheImage(t *testing.T) {
	for _, forge := range []bool{false, true} {
		b := newBox(t)
		n := b.start()
		_ = b.check(n, nil)
		path := filepath.Join(b.image, paths.ContainerPreload)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if forge {
			if err := os.WriteFile(path, nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		b.checkRunning(n, ErrHidden)
		_ = b.check(n, ErrHidden)
	}
}

func TestAVolumeIsMountedOverOurs(t *testing.T) {
	b := newBox(t)
	n := b.start()
	n.Do("mkdir", "/tmp/nri-vgpu/lib")
	n.Do("bind", "/tmp", "/usr/local")
	b.checkRunning(n, ErrHidden)
}

// TestAProcessWithItsOwnRoot checks that CheckRunning accepts a process whose own root is empty.
func TestAProcessWithItsOwnRoot(t *testing.T) {
	b := newBox(t)
	b.volume("/data")
	n := b.start()
	n.Do("mkdir", "/data/jail/etc")
	n.Do("chroot", "/data/jail")
	b.checkRunning(n, nil)
}

// TestTheHostsFilesAreGone checks that CheckRunning accepts mounts of files that an update has
// removed from the host.
func TestTheHostsFilesAreGone(t *testing.T) {
	b := newBox(t)
	n := b.start()
	for _, m := range b.ours {
		if err := os.Rename(m.Source, m.Source+".old"); err != nil {
			t.Fatal(err)
		}
	}
	b.checkRunning(n, nil)
	n.Do("rename", "/usr/local/nri-vgpu", "/usr/local/x")
	b.checkRunning(n, ErrHidden)
}

// TestAVolumeAboveOursHangs checks that Check does not wait for a volume above nri-vgpu's files
// that hangs, because Check does not access the volume.
func TestAVolumeAboveOursHangs(t *testing.T) {
	b := newBox(t)
	b.mounts = []Mount{{Source: "/volume", Destination: "/usr/local"}}
	n := b.start()
	n.Do("hang", "/usr/local")
	looks, begin := NewLooks(), time.Now()
	for range 2 * maxStuck {
		_ = b.wants(looks.Check("u/main", "/proc", n.PID, b.mounts), ErrVolume)
	}
	b.took(begin, 0)
	// CheckRunning has to access the volume of a running container.
	begin = time.Now()
	_ = b.wants(looks.CheckRunning("u/main", "/proc", n.PID, b.ours), ErrStuck)
	b.took(begin, lookPatience)
	begin = time.Now()
	_ = b.wants(looks.CheckRunning("u/main", "/proc", n.PID, b.ours), ErrStuck)
	b.took(begin, 0)
}

// TestImagesHang checks that a hanging image blocks no look-ups in other containers. The file
// system of an image that is loaded on demand may hang.
func TestImagesHang(t *testing.T) {
	looks := NewLooks()
	hangs := func(name string) error {
		b := newBox(t)
		n := b.start()
		n.Do("hang", "/tmp")
		n.Do("chroot", "/tmp")
		return looks.Check(name, "/proc", n.PID, b.mounts)
	}
	b := newBox(t)
	n := b.start()
	for k := range maxStuck + 1 {
		err := hangs(strconv.Itoa(k))
		if full := k == maxStuck; !errors.Is(err, ErrStuck) || errors.Is(err, deadline.ErrFull) != full {
			t.Errorf("number %d: %v", k, err)
		}
	}
	begin := time.Now()
	_ = b.wants(looks.Check("u/main", "/proc", n.PID, b.mounts), nil)
	b.took(begin, 0)
}

// TestMountsElsewhereNeedNoPlace checks that a disturbed look-up does not count against the bound
// on look-ups that may hang. A mount elsewhere, as any start of a container causes, disturbs
// look-ups in the kernel's cache.
func TestMountsElsewhereNeedNoPlace(t *testing.T) {
	looks := NewLooks()
	hang := make(chan struct{})
	defer close(hang)
	for k := range maxStuck {
		_ = looks.ask(strconv.Itoa(k), func() error { <-hang; return nil })
	}
	b := newBox(t)
	n := b.start()
	dir, stop, stopped := t.TempDir(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := unix.Mount("elsewhere", dir, "tmpfs", 0, "size=4k"); err != nil {
				t.Error(err)
				return
			}
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	}()
	defer func() { close(stop); <-stopped }()
	for range 1000 {
		_ = b.wants(looks.Check("u/main", "/proc", n.PID, b.mounts), nil)
	}
}

func (b *box) took(begin time.Time, most time.Duration) {
	b.Helper()
	if took := time.Since(begin); took > most+300*time.Millisecond {
		b.Errorf("it took %v", took)
	}
}
