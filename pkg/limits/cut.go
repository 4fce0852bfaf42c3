package limits

import (
	"fmt"
	"os"
	"syscall"
)

const (
	blockSize = 512
	// hugePage is what the kernel may give a file at a time, beyond its end, too.
	hugePage = 2 << 20
	// mostBlocks is the most memory that a usage page takes which nobody let grow.
	mostBlocks = (usageSize + hugePage - 1) / hugePage * hugePage
)

// Cut cuts a usage page back to its size where a tenant made it longer, or
// allocated memory beyond its end. It returns how large the page was, 0 where it
// had not grown. A page that is too short stays so: what was on it is lost.
func Cut(path string) (int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, fmt.Errorf("look at usage page: %w", err)
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
