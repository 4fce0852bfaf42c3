// Package tempdir makes the directories that benchmarks work in: in memory, as what
// processes share on a node is, so that none of them waits for a disk.
package tempdir

import (
	"errors"
	"os"
	"time"
)

// New makes an empty directory, and returns what removes it. It is in memory where the
// machine has /dev/shm, else where the environment wants temporary files.
func New() (dir string, remove func() error, err error) {
	parent := "/dev/shm"
	if info, err := os.Stat(parent); err != nil || !info.IsDir() {
		parent = ""
	}
	dir, err = os.MkdirTemp(parent, "vgpu-bench-")
	return dir, func() error { return removeAll(dir) }, err
}

// removeAll removes a directory in which processes may be tidying up still.
func removeAll(dir string) error {
	err := os.RemoveAll(dir)
	for tries := 0; err != nil && tries < 50; tries++ {
		time.Sleep(20 * time.Millisecond)
		err = os.RemoveAll(dir)
	}
	if err != nil {
		return errors.Join(errors.New("a benchmark's directory stays behind"), err)
	}
	return nil
}
