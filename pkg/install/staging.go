package install

import (
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	// Directories in which files are made have names that begin so.
	stagingVersion = ".installing-"
	stagingProgram = ".nri-vgpu-"
	// abandoned is how old a staging directory is that nobody works in: another agent may
	// install at the same time.
	abandoned = time.Hour
)

// removeAbandoned removes the staging directories that killed programs have left in a
// directory. What cannot be removed is tried again at the next start.
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
