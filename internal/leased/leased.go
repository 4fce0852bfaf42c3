// SPDX-License-Identifier: Apache-2.0

// Package leased opens files that containers have mounted, without a wait for a lease (F_SETLEASE) of a
// container's process. The process can renew its lease without end, so no function tries again.
package leased

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Err means that a process has a lease on the file.
var Err = errors.New("a process has a lease on the file")

// Open opens an existing file. If a process has a lease on the file, Open returns Err. The kernel then
// ends the lease within 45 s, unless the process renews the lease.
func Open(path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, flag|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.EAGAIN) {
		err = fmt.Errorf("%w: %w", Err, err)
	}
	return f, err
}

// Read returns at most the first bytes of a file. If a process has a lease on the file, Read returns
// Err.
func Read(path string, most int64) ([]byte, error) {
	f, err := Open(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most))
}

// HasSize reports whether a file has this size. A lease does not delay HasSize.
func HasSize(path string, size int64) bool {
	info, err := os.Stat(path)
	return err == nil && info.Size() == size
}
