// SPDX-License-Identifier: Apache-2.0

package usagefs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/test/ownmounts"
)

// pageSize is the capacity of the tests' file systems.
const pageSize = 2 << 20

// roleVariable is the environment variable with the role of a process that a test starts from this
// program.
const roleVariable = "NRI_VGPU_TEST_ROLE"

// roles are the functions of the processes with roles. The argument is the directory of the mounts,
// or the path of a page for the tenant.
var roles = map[string]func(dir string) error{
	"agent": func(dir string) error {
		page, err := New(dir, "page", pageSize).Make("pod", "main")
		if err != nil {
			return err
		}
		_, err = page.WriteString("made by the agent")
		return errors.Join(err, page.Close())
	},
	"cleaner": func(dir string) error {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
			return err
		}
		return Remove(dir)
	},
	// The tenant is another user, in a new user namespace, and has access only to the page.
	"tenant": func(page string) error {
		f, err := os.OpenFile(page, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		if err := unix.Fallocate(int(f.Fd()), 0, 0, 2*pageSize); !errors.Is(err, unix.ENOSPC) {
			return errors.Join(errors.New("its page grows"), err)
		}
		_, err = f.WriteAt(make([]byte, pageSize), 0)
		return errors.Join(err, f.Close())
	},
}

func TestMain(m *testing.M) {
	act, ok := roles[os.Getenv(roleVariable)]
	if !ok {
		os.Exit(m.Run())
	}
	if err := act(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// play runs this program in a role, in a mount namespace that receives the test's mounts.
func play(t *testing.T, role, dir string, namespaces ...uintptr) {
	t.Helper()
	cmd := ownmounts.Command(dir)
	for _, flag := range namespaces {
		cmd.SysProcAttr.Cloneflags |= flag
	}
	cmd.Env = append(cmd.Env, roleVariable+"="+role)
	must(t, cmd.Run())
}

// node returns a node's /run, and the mounts of its usage pages.
func node(t *testing.T) (run string, mounts *Mounts) {
	t.Helper()
	run = ownmounts.Small(t)
	return run, New(filepath.Join(run, "usage"), "page", pageSize)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (m *Mounts) page(t *testing.T, pod, container string) *os.File {
	t.Helper()
	page, err := m.Make(pod, container)
	must(t, err)
	t.Cleanup(func() { page.Close() })
	return page
}

func free(t *testing.T, dir string) (blocks, files uint64) {
	t.Helper()
	var s unix.Statfs_t
	must(t, unix.Statfs(dir, &s))
	return s.Bfree, s.Ffree
}

// TestATenantTakesNoMoreThanThePage checks that a tenant cannot take the node's memory through the
// page. The tenant's container has mounted the page, and the tenant may be root in the container.
func TestATenantTakesNoMoreThanThePage(t *testing.T) {
	if !ownmounts.Run(t) {
		return
	}
	const much = 10 << 30
	for name, grow := range map[string]func(page *os.File) error{
		"allocate":          func(f *os.File) error { return unix.Fallocate(int(f.Fd()), 0, 0, much) },
		"allocate unseen":   func(f *os.File) error { return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, much) },
		"allocate far away": func(f *os.File) error { return unix.Fallocate(int(f.Fd()), 0, much, pageSize+4096) },
		"write": func(f *os.File) error {
			for {
				if _, err := f.Write(make([]byte, 4096)); err != nil {
					return err
				}
			}
		},
		"write here and there": func(f *os.File) error {
			for at := int64(0); ; at += much {
				if _, err := f.WriteAt([]byte{1}, at); err != nil {
					return err
				}
			}
		},
		"attributes": func(f *os.File) error {
			for i := range 1 << 20 {
				if err := unix.Fsetxattr(int(f.Fd()), fmt.Sprintf("user.%d", i), make([]byte, 1024), 0); err != nil {
					return err
				}
			}
			return nil
		},
		"more attributes": func(f *os.File) error {
			for i := range 1 << 20 {
				if err := unix.Fsetxattr(int(f.Fd()), fmt.Sprintf("user.%d", i), nil, 0); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			run, mounts := node(t)
			page := mounts.page(t, "pod", "main")
			blocks, files := free(t, run)
			if err := grow(page); !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EOPNOTSUPP) {
				t.Errorf("got %v, want no space", err)
			}
			if b, f := free(t, run); b != blocks || f != files {
				t.Errorf("the node's /run has %d blocks and %d files left, had %d and %d", b, f, blocks, files)
			}
			var own unix.Statfs_t
			must(t, unix.Fstatfs(int(page.Fd()), &own))
			if own.Files != 3 { // the root, the page, and 1 KiB of attributes
				t.Errorf("the page's file system has %d inodes, want 3", own.Files)
			}
			if has := own.Blocks * uint64(own.Bsize); has != pageSize {
				t.Errorf("the page's file system has room for %d bytes, want %d", has, pageSize)
			}
		})
	}
}

// TestAllOfThePageCanBeWritten checks that the whole page is writable at any time. If the file
// system is full, the kernel kills a process that writes to its mapping of the page.
func TestAllOfThePageCanBeWritten(t *testing.T) {
	if !ownmounts.Run(t) {
		return
	}
	_, mounts := node(t)
	page := mounts.page(t, "pod", "main")
	must(t, page.Truncate(pageSize))
	memory, err := unix.Mmap(int(page.Fd()), 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	for _, before := range []func() error{
		func() error { return nil },
		func() error {
			return unix.Fallocate(int(page.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, pageSize)
		},
		func() error { return errors.Join(page.Truncate(0), page.Truncate(pageSize)) },
	} {
		must(t, before())
		for at := 0; at < pageSize; at += 4096 {
			memory[at]++
		}
	}
	must(t, unix.Munmap(memory))
}

func TestOnlyRootReachesThePages(t *testing.T) {
	if !ownmounts.Run(t) {
		return
	}
	run, mounts := node(t)
	page := mounts.page(t, "pod", "main")
	for dir := filepath.Dir(page.Name()); dir != run; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		must(t, err)
		if info.Mode().Perm() != 0o700 {
			t.Errorf("%s has mode %v", dir, info.Mode())
		}
	}
	var s unix.Statfs_t
	must(t, unix.Fstatfs(int(page.Fd()), &s))
	if want := int64(unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC); s.Flags&want != want {
		t.Errorf("mounted with flags %#x", s.Flags)
	}
}

func TestKeepAndRemove(t *testing.T) {
	if !ownmounts.Run(t) {
		return
	}
	_, mounts := node(t)
	first, other := mounts.page(t, "pod", "main"), mounts.page(t, "pod", "other")
	second := mounts.page(t, "pod", "main")
	elsewhere := mounts.page(t, "elsewhere", "main")
	if got := ownmounts.Mounted(t, mounts.Dir); len(got) != 4 {
		t.Fatalf("mounted are %v", got)
	}
	must(t, mounts.Keep("pod", "main", second))
	exists := func(page *os.File) bool {
		_, err := os.Stat(page.Name())
		return !errors.Is(err, fs.ErrNotExist)
	}
	if exists(first) || !exists(second) || !exists(other) || !exists(elsewhere) || len(ownmounts.Mounted(t, mounts.Dir)) != 3 {
		t.Errorf("kept are %v", ownmounts.Mounted(t, mounts.Dir))
	}
	// An open page stays usable.
	if _, err := first.WriteString("still there"); err != nil {
		t.Error(err)
	}
	// Another mount covers one of the file systems.
	must(t, unix.Mount("over", filepath.Dir(other.Name()), "tmpfs", 0, ""))
	for range 2 {
		must(t, mounts.Remove("pod"))
		if got := ownmounts.Mounted(t, mounts.Dir); len(got) != 1 || !exists(elsewhere) {
			t.Errorf("left are %v", got)
		}
	}
	must(t, mounts.Discard(elsewhere))
	must(t, Remove(mounts.Dir))
	if got := ownmounts.Mounted(t, filepath.Dir(mounts.Dir)); len(got) != 0 {
		t.Errorf("left are %v", got)
	}
}

func TestMakeLeavesNothingWhenItFails(t *testing.T) {
	if !ownmounts.Run(t) {
		return
	}
	run, _ := node(t)
	dir := filepath.Join(run, "usage")
	for name, mounts := range map[string]*Mounts{
		"the kernel refuses": New(dir, "page", -1),
		"no such name":       New(dir, "no/page", pageSize),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := mounts.Make("pod", "main"); err == nil {
				t.Fatal("it was made")
			}
			left, err := os.ReadDir(filepath.Join(dir, "pod", "main"))
			if err != nil || len(left) != 0 || len(ownmounts.Mounted(t, dir)) != 0 {
				t.Errorf("left are %v and %v, %v", left, ownmounts.Mounted(t, dir), err)
			}
		})
	}
	// This test fills /run.
	var s unix.Statfs_t
	must(t, unix.Statfs(run, &s))
	for i := range s.Ffree {
		f, err := os.Create(filepath.Join(run, fmt.Sprint(i)))
		if err != nil {
			break
		}
		f.Close()
	}
	if _, err := New(dir, "page", pageSize).Make("another", "main"); !errors.Is(err, unix.ENOSPC) || len(ownmounts.Mounted(t, dir)) != 0 {
		t.Errorf("got %v, mounted are %v", err, ownmounts.Mounted(t, dir))
	}
}

// TestMountsOutliveTheAgentAndGoWithTheirDirectories checks that the cleanup container of an
// uninstallation can remove the node's mounts. The container sees no mounts of the agent, because
// the agent's mount namespace ends with the agent.
func TestMountsOutliveTheAgentAndGoWithTheirDirectories(t *testing.T) {
	if !ownmounts.Run(t) {
		return
	}
	_, mounts := node(t)
	play(t, "agent", mounts.Dir)
	points := ownmounts.Mounted(t, mounts.Dir)
	if len(points) != 1 {
		t.Fatalf("without the agent mounted are %v", points)
	}
	content, err := os.ReadFile(filepath.Join(points[0], "page"))
	if err != nil || string(content) != "made by the agent" {
		t.Errorf("the page has %q, %v", content, err)
	}
	play(t, "cleaner", mounts.Dir)
	if left := ownmounts.Mounted(t, mounts.Dir); len(left) != 0 {
		t.Errorf("left are %v", left)
	}
}

func TestATenantInAUserNamespaceTakesNoMore(t *testing.T) {
	if !ownmounts.Run(t) {
		return
	}
	run, mounts := node(t)
	page := mounts.page(t, "pod", "main")
	must(t, page.Chmod(0o666))
	// The tenant cannot access the page at its path, so the container has a bind mount of the page.
	container := filepath.Join(run, "container")
	must(t, os.WriteFile(container, nil, 0o600))
	must(t, unix.Mount(page.Name(), container, "", unix.MS_BIND, ""))
	blocks, _ := free(t, run)
	play(t, "tenant", container, unix.CLONE_NEWUSER)
	if now, _ := free(t, run); now != blocks {
		t.Errorf("the node's /run has %d blocks left, had %d", now, blocks)
	}
}
