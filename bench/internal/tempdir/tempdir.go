// SPDX-License-Identifier: Apache-2.0

// Package tempdir creates the benchmarks' working directories. The package uses /dev/shm if
// present, because a node keeps the programs' state in memory.
package tempdir

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// New creates an empty directory, and returns its path and a function that removes the directory.
// The directory is in /dev/shm if programs in /dev/shm can be executed. If not, the directory is in
// the default directory for temporary files.
func New() (dir string, remove func() error, err error) {
	dir, err = os.MkdirTemp(parent(), "vgpu-bench-")
	return dir, func() error { return removeAll(dir) }, err
}

func parent() string {
	const shm = "/dev/shm"
	var stat unix.Statfs_t
	if err := unix.Statfs(shm, &stat); err != nil || stat.Flags&unix.ST_NOEXEC != 0 {
		return ""
	}
	return shm
}

// removeAll removes a directory. removeAll retries, because processes may still be cleaning up in
// the directory.
func removeAll(dir string) error {
	err := os.RemoveAll(dir)
	for tries := 0; err != nil && tries < 50; tries++ {
		time.Sleep(20 * time.Millisecond)
		err = os.RemoveAll(dir)
	}
	if err != nil {
		return fmt.Errorf("remove the benchmark's directory: %w", err)
	}
	return nil
}
