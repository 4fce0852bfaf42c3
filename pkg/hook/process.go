// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// firstProcess identifies a container's first process: the container runs as long as the process.
// The kernel reuses process ids, so the start time is part of the identity.
type firstProcess struct {
	pid   int // 0 if unknown
	start string
}

// findProcess returns the process that currently has this id. proc is the proc file system
// of the host's pid namespace.
func findProcess(proc string, pid int) firstProcess {
	start, err := startTime(proc, pid)
	if err != nil {
		return firstProcess{}
	}
	return firstProcess{pid, start}
}

// ended reports whether the process has certainly ended.
func (p firstProcess) ended(proc string) bool {
	if p.pid == 0 {
		return false
	}
	start, err := startTime(proc, p.pid)
	return errors.Is(err, fs.ErrNotExist) || err == nil && start != p.start
}

// startTime returns the 22nd field of a process's stat. The second field, the name,
// may contain blanks and parentheses.
func startTime(proc string, pid int) (string, error) {
	stat, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", err
	}
	const started = 22 - 3 // counted from the field after the name
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) > started {
		return fields[started], nil
	}
	return "", errors.New("a process's stat is too short")
}
