// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// machineRoot is the mount point of the machine's root during the build of the node's root.
const machineRoot = "/.machine"

// buildRoot makes the node's root, a copy-on-write view of the machine's root with fresh
// directories of the node. The root is visible only in the mount namespace, and writes go only to
// the state directory. buildRoot changes the root first, so that absolute links lead into the
// node's root and never into the machine's root.
func buildRoot(s Spec, mounts []mount) error {
	// Later mounts must not propagate to the machine.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	root, err := mountOverlay(filepath.Join(s.StateDir, "rootfs"))
	if err != nil {
		return err
	}
	if err := changeRoot(root); err != nil {
		return err
	}
	if err := clearPaths(s.Clear); err != nil {
		return err
	}
	for _, m := range extraMounts(mounts, s.Clear) {
		// The node cannot take over a mount that another mount hides, and does not need the mount.
		if err := bind(Bind{Source: m.point, Target: m.point, ReadOnly: true}); err != nil {
			log.Printf("mount of the machine left out: %v", err)
		}
	}
	if err := freshMounts(mounts); err != nil {
		return err
	}
	if err := copyTree(filepath.Join(machineRoot, s.Tree), "/"); err != nil {
		return err
	}
	for _, b := range append([]Bind{{Source: s.StateDir, Target: s.StateDir}}, s.Binds...) {
		if err := bind(b); err != nil {
			return err
		}
	}
	return leaveMachine()
}

// mountOverlay mounts the copy-on-write view. If the file system of dir cannot hold an overlay's
// upper layer, as another overlay cannot, the upper layer is in memory.
func mountOverlay(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the node's root: %w", err)
	}
	root, err := tryOverlay(dir)
	if err == nil {
		return root, nil
	}
	log.Printf("%v; using memory instead of %s", err, dir)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"); err != nil {
		return "", fmt.Errorf("make the node's root: mount tmpfs: %w", err)
	}
	return tryOverlay(dir)
}

func tryOverlay(dir string) (string, error) {
	upper, work, merged := filepath.Join(dir, "upper"), filepath.Join(dir, "work"), filepath.Join(dir, "merged")
	for _, d := range []string{upper, work, merged} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return "", fmt.Errorf("make the node's root: %w", err)
		}
	}
	options := fmt.Sprintf("lowerdir=/,upperdir=%s,workdir=%s", upper, work)
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		return "", fmt.Errorf("make the node's root: mount overlay: %w", err)
	}
	return merged, nil
}

// freshMounts mounts the directories that a node does not share with its machine.
func freshMounts(mounts []mount) error {
	tmpfs := func(dir, options string) error {
		return mountAt(dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options)
	}
	steps := []func() error{
		func() error { return mountAt("/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "") },
		func() error { return mountAt("/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "") },
		func() error { return mountCgroups(hierarchies(mounts)) },
		mountDevices,
		func() error { return tmpfs("/run", "mode=0755") },
		coverKernelTunables,
		func() error { return tmpfs("/tmp", "mode=1777") },
		linkVarRun,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func mountAt(dir, fsType string, flags uintptr, options string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	if err := unix.Mount(fsType, dir, fsType, flags, options); err != nil {
		return fmt.Errorf("mount %s on %s: %w", fsType, dir, err)
	}
	return nil
}

// mountCgroups mounts all hierarchies at their usual paths. In the node's cgroup namespace the
// roots of the hierarchies are the node's own cgroups.
func mountCgroups(trees []hierarchy) error {
	for _, h := range trees {
		fsType := "cgroup"
		if h.v2 {
			fsType = "cgroup2"
		}
		if h.root != "/sys/fs/cgroup" && !isMountPoint("/sys/fs/cgroup") {
			if err := mountAt("/sys/fs/cgroup", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
				return err
			}
		}
		if err := mountAt(h.root, fsType, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, h.options); err != nil {
			return err
		}
		if err := linkControllers(h); err != nil {
			return err
		}
	}
	return nil
}

// linkControllers makes a link to a joint hierarchy for each of its controllers, as distributions
// do: /sys/fs/cgroup/cpu → cpu,cpuacct.
func linkControllers(h hierarchy) error {
	controllers := strings.Split(h.options, ",")
	if len(controllers) < 2 {
		return nil
	}
	for _, c := range controllers {
		link := filepath.Join(filepath.Dir(h.root), c)
		if err := os.Symlink(filepath.Base(h.root), link); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("link cgroup controller: %w", err)
		}
	}
	return nil
}

func isMountPoint(dir string) bool {
	var self, parent unix.Stat_t
	if unix.Stat(dir, &self) != nil || unix.Stat(filepath.Dir(dir), &parent) != nil {
		return false
	}
	return self.Dev != parent.Dev
}

// kernelTunables are settings of the whole machine that a kubelet requires. The node sees the
// settings as files with the required values, so the kubelet does not change the machine's
// settings.
var kernelTunables = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// coverKernelTunables mounts the files of kernelTunables.
func coverKernelTunables() error {
	const dir = "/run/kernel-tunables"
	for name, value := range kernelTunables {
		target, source := filepath.Join("/proc/sys", name), filepath.Join(dir, name)
		if _, err := os.Stat(target); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(source), 0o755); err != nil {
			return fmt.Errorf("write kernel tunables: %w", err)
		}
		if err := os.WriteFile(source, []byte(value+"\n"), 0o644); err != nil {
			return fmt.Errorf("write kernel tunables: %w", err)
		}
		if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("write kernel tunables: mount on %s: %w", target, err)
		}
	}
	return nil
}

// linkVarRun links /var/run to /run, unless /var/run is already a link.
func linkVarRun() error {
	const dir = "/var/run"
	if info, err := os.Lstat(dir); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make /var/run: %w", err)
	}
	if err := unix.Mount("/run", dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("make /var/run: %w", err)
	}
	return nil
}

// bind mounts a file or directory of the machine, and makes the mount point if needed.
func bind(b Bind) error {
	source := filepath.Join(machineRoot, b.Source)
	if err := makeMountPoint(source, b.Target); err != nil {
		return fmt.Errorf("mount point %s: %w", b.Target, err)
	}
	if err := unix.Mount(source, b.Target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s on %s: %w", b.Source, b.Target, err)
	}
	if !b.ReadOnly {
		return nil
	}
	if err := unix.Mount("", b.Target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", b.Target, err)
	}
	return nil
}

func makeMountPoint(source, target string) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if _, err := os.Stat(target); err == nil {
		return nil
	}
	if info.IsDir() {
		return os.MkdirAll(target, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(target, os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// clearPaths hides the machine's files at these paths. Directories stay, but are empty.
func clearPaths(paths []string) error {
	for _, p := range paths {
		info, err := os.Lstat(p)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("clear %s: %w", p, err)
		}
		if err := os.RemoveAll(p); err != nil {
			return fmt.Errorf("clear %s: %w", p, err)
		}
		if info.IsDir() {
			if err := os.Mkdir(p, 0o755); err != nil {
				return fmt.Errorf("clear %s: %w", p, err)
			}
		}
	}
	return nil
}

// copyTree copies regular files and directories. copyTree follows links such as /lib in the target.
func copyTree(from, root string) error {
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(root, strings.TrimPrefix(path, from))
		if d.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(target, content, info.Mode().Perm())
	})
	if err != nil {
		return fmt.Errorf("fill the node's root: %w", err)
	}
	return nil
}

// changeRoot makes root the root directory, with the machine's root at machineRoot.
func changeRoot(root string) error {
	machine := filepath.Join(root, machineRoot)
	if err := os.MkdirAll(machine, 0o700); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	if err := unix.PivotRoot(root, machine); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	return nil
}

// leaveMachine unmounts the machine's root.
func leaveMachine() error {
	if err := unix.Unmount(machineRoot, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the machine's root: %w", err)
	}
	if err := os.Remove(machineRoot); err != nil {
		return fmt.Errorf("unmount the machine's root: %w", err)
	}
	// Volumes with mount propagation need shared mounts, as init systems make them.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	return nil
}
