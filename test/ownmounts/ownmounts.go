// SPDX-License-Identifier: Apache-2.0

// Package ownmounts runs tests that mount file systems in a mount namespace, which ends with the
// test. The tests need no root outside the namespace.
package ownmounts

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// inside is set in processes that run in a separate namespace.
const inside = "NRI_VGPU_TEST_OWN_MOUNTS"

// Command returns this program with other arguments, in a new mount namespace. Without root, the
// program also gets a new user namespace in which it is root.
func Command(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	return cmd
}

// Run runs a test by itself, in a new mount namespace that shares no mounts with the machine. Run
// reports whether the caller runs in the namespace and must continue.
func Run(t testing.TB, flags ...string) bool {
	t.Helper()
	if os.Getenv(inside) != "" {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			t.Fatal(err)
		}
		return true
	}
	cmd := Command(append(flags, "-test.run", "^"+t.Name()+"$")...)
	cmd.Stdout, cmd.Stderr = nil, nil
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
	return false
}

// Small mounts a small file system in memory whose mounts propagate, like a node's /run.
func Small(t testing.TB) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := unix.Mount("run", dir, "tmpfs", 0, "size=8m,nr_inodes=64"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Mounted returns the mount points below a directory, as the kernel lists them.
func Mounted(t testing.TB, dir string) []string {
	t.Helper()
	content, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var points []string
	for line := range strings.Lines(string(content)) {
		if point := strings.Fields(line)[4]; strings.HasPrefix(point, dir+"/") {
			points = append(points, point)
		}
	}
	return points
}
