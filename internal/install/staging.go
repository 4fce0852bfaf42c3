// SPDX-License-Identifier: Apache-2.0

package install

import (
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	// stagingProgram is the prefix of the directories in which replace prepares the guard's
	// program.
	stagingProgram = ".nri-vgpu-"
	// abandoned is the age from which a staging directory counts as abandoned. A younger directory
	// may belong to another agent that is installing.
	abandoned = time.Hour
)

// removeAbandoned removes the staging directories of killed programs. The next start retries failed
// removals.
func removeAbandoned(dir, prefix string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && e.IsDir() && strings.HasPrefix(e.Name(), prefix) && time.Since(info.ModTime()) > abandoned {
			_ = os.RemoveAll(filepath.Join(dir, e.Name()))
		}
	}
}
