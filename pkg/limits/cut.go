// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"fmt"
	"os"
	"syscall"
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
// not extend a page that is too short, since the content of the page is lost.
func Cut(path string) (int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, fmt.Errorf("stat usage page: %w", err)
	}
	memory := info.Sys().(*syscall.Stat_t).Blocks * blockSize
	if info.Size() <= usageSize && memory <= mostBlocks {
		return 0, nil
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
