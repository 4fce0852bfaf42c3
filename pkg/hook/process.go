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

// firstProcess is a container's first process: as long as it is there the container
// lives. Ids are used again, so when it started belongs to it.
type firstProcess struct {
	pid   int // 0 where it is not known
	start string
}

// findProcess gives the process that has an id now. proc is /proc of the host's
// pid namespace.
func findProcess(proc string, pid int) firstProcess {
	if pid == 0 {
		return firstProcess{}
	}
	start, err := startTime(proc, pid)
	if err != nil {
		return firstProcess{}
	}
	return firstProcess{pid, start}
}

// ended tells whether the process is known to have gone.
func (p firstProcess) ended(proc string) bool {
	if p.pid == 0 {
		return false
	}
	start, err := startTime(proc, p.pid)
	return errors.Is(err, fs.ErrNotExist) || err == nil && start != p.start
}

// startTime is the 22nd field of a process's stat; its second, the name, may
// have blanks and parentheses.
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
