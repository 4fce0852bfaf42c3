// Package tempdir makes the benchmarks' working directories, in /dev/shm where there is
// one, because a node keeps that state in memory.
package tempdir

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// New makes an empty directory and returns it with a function that removes it. It is in
// /dev/shm if programs can be started from there, and else where temporary files are.
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

// removeAll removes a directory in which processes may be tidying up still.
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
