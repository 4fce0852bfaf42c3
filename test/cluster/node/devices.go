// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ownDevices are names below /dev that belong to the node itself.
var ownDevices = []string{"gpusim", "mqueue", "pts", "shm", "ptmx", "log", "hugepages"}

// mountDevices mounts a /dev for the node, with the machine's device nodes including real GPUs. New
// device nodes in this /dev stay in the node.
func mountDevices() error {
	if err := mountAt("/dev", "tmpfs", unix.MS_NOSUID, "mode=0755"); err != nil {
		return err
	}
	if err := copyDevices(filepath.Join(machineRoot, "dev"), "/dev"); err != nil {
		return fmt.Errorf("make device nodes: %w", err)
	}
	if err := mountAt("/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5"); err != nil {
		return err
	}
	if err := os.Symlink("pts/ptmx", "/dev/ptmx"); err != nil {
		return fmt.Errorf("make device nodes: %w", err)
	}
	if err := mountAt("/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
		return err
	}
	return mountAt("/dev/mqueue", "mqueue", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
}

// copyDevices copies nodes, links and directories to another directory.
func copyDevices(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // devices may appear and disappear
		}
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, from+"/")
		if path == from {
			return nil
		}
		if belowAny(name, ownDevices) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		return copyDevice(path, filepath.Join(to, name), d)
	})
}

func copyDevice(from, to string, d fs.DirEntry) error {
	switch {
	case d.IsDir():
		return os.MkdirAll(to, 0o755)
	case d.Type()&fs.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case d.Type()&fs.ModeDevice != 0:
		var stat unix.Stat_t
		if err := unix.Lstat(from, &stat); err != nil {
			return err
		}
		if err := unix.Mknod(to, stat.Mode, int(stat.Rdev)); err != nil {
			return fmt.Errorf("make %s: %w", from, err)
		}
		// The umask must not make a GPU unreachable for ordinary users.
		return os.Chmod(to, fs.FileMode(stat.Mode&0o777))
	default:
		return nil // sockets and pipes are the machine's own
	}
}
