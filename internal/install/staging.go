// SPDX-License-Identifier: Apache-2.0

package install

import (
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	// stagingProgram is the prefix of the directories in which the guard's program is
	// prepared.
	stagingProgram = ".nri-vgpu-"
	// abandoned is the age from which a staging directory counts as abandoned. Another
	// agent may install at the same time.
	abandoned = time.Hour
)

// removeAbandoned removes the staging directories of killed programs. The next start
// retries failed removals.
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
