// SPDX-License-Identifier: Apache-2.0

package guardfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
)

// Status is a running guard's report about itself.
type Status struct {
	Version string `json:"version"`
	PID     int    `json:"pid"`
	// Runtime is the runtime's name and version, as the runtime reports them.
	Runtime string `json:"runtime"`
}

// Loaded reports whether the runtime has loaded the guard, and returns the guard's status. A guard
// holds a lock on its status file until the guard's process exits.
func Loaded(runDir string) (Status, bool, error) {
	var s Status
	f, err := os.Open(paths.GuardStatus(runDir))
	if errors.Is(err, fs.ErrNotExist) {
		return s, false, nil
	}
	if err != nil {
		return s, false, fmt.Errorf("read the guard's status: %w", err)
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_RDLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return s, false, fmt.Errorf("see whether the guard runs: %w", err)
	}
	if lock.Type == unix.F_UNLCK {
		return s, false, nil
	}
	// The guard may not have written the status yet.
	_ = json.NewDecoder(f).Decode(&s)
	return s, true, nil
}
