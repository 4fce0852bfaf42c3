// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	blockSize = 512
	// hugePage is the number of bytes that the kernel may allocate to a file at once, even beyond
	// the file's end.
	hugePage = 2 << 20
	// mostBlocks is the most memory that an unmodified usage page takes, in bytes.
	mostBlocks = (usageSize + hugePage - 1) / hugePage * hugePage
)

// Cut truncates a usage page that a tenant extended, or for which a tenant allocated memory beyond
// its end. Cut returns the page's former size in bytes, or 0 if the page had not grown. Cut does
// not extend a page that is too short, since the content of the page is lost. Cut does not truncate a
// page on a file system with room for the page alone.
//
// A tenant that writes to the page from a volume that does not answer locks the page without end. To
// truncate the page then waits, and a kernel may ignore signals during the wait.
func Cut(path string) (int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, fmt.Errorf("stat usage page: %w", err)
	}
	memory := info.Sys().(*syscall.Stat_t).Blocks * blockSize
	if info.Size() <= usageSize && memory <= mostBlocks {
		return 0, nil
	}
	var system unix.Statfs_t
	if err := unix.Statfs(path, &system); err != nil {
		return 0, fmt.Errorf("find the file system of a usage page: %w", err)
	}
	if int64(system.Blocks)*system.Bsize <= mostBlocks {
		return max(info.Size(), memory), nil
	}
	f, err := openPage(path, os.O_RDWR)
	if err != nil {
		return 0, fmt.Errorf("open usage page: %w", err)
	}
	defer f.Close()
	if err := f.Truncate(usageSize); err != nil {
		return 0, fmt.Errorf("cut usage page: %w", err)
	}
	return max(info.Size(), memory), nil
}
