// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	lockInterval = 50 * time.Millisecond
	// endPatience is the time that the kernel may take to end all processes of a node.
	endPatience = 30 * time.Second
)

func directly(*http.Request) (*url.URL, error) { return nil, nil }

// pause waits for a duration, and fails if the context ends first.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// alive reports whether a process with this pid and start time runs.
func alive(pid int, startTime uint64) bool {
	state, start, err := processState(pid)
	return err == nil && start == startTime && state != 'Z' && state != 'X'
}

// processState reads a process's state and start time (clock ticks since boot).
func processState(pid int) (state byte, startTime uint64, err error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, fmt.Errorf("read the state of process %d: %w", pid, err)
	}
	return parseStat(content)
}

// parseStat parses a stat file after the program's name, which may contain any character.
func parseStat(content []byte) (state byte, startTime uint64, err error) {
	const startTimeField = 19 // counted from the state
	end := bytes.LastIndexByte(content, ')')
	if end < 0 {
		return 0, 0, errors.New("a process's stat file has no program name")
	}
	fields := strings.Fields(string(content[end+1:]))
	if len(fields) <= startTimeField {
		return 0, 0, errors.New("a process's stat file is too short")
	}
	startTime, err = strconv.ParseUint(fields[startTimeField], 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("start time of a process: %w", err)
	}
	return fields[0][0], startTime, nil
}

// endProcess kills the first process of a pid namespace, which ends all processes of the namespace,
// and waits until all have ended. The first process becomes a zombie only when no other process is
// left.
func endProcess(pid int, startTime uint64) error {
	if !alive(pid, startTime) {
		return nil
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("end the supervisor: %w", err)
	}
	for deadline := time.Now().Add(endPatience); alive(pid, startTime); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("the supervisor, process %d, does not end", pid)
		}
	}
	return nil
}

// hostPid returns the machine's pid of a node's process with the pid inner in the node. nodePid is
// the pid of the node's supervisor.
func hostPid(nodePid, inner int) (int, error) {
	namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", nodePid))
	if err != nil {
		return 0, fmt.Errorf("open the pid namespace of the node: %w", err)
	}
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	for _, dir := range entries {
		if ns, err := os.Readlink(dir + "/ns/pid"); err != nil || ns != namespace {
			continue
		}
		status, err := os.ReadFile(dir + "/status")
		if err == nil && innermostPid(string(status)) == inner {
			return strconv.Atoi(filepath.Base(dir))
		}
	}
	return 0, fmt.Errorf("the node has no process %d", inner)
}

// innermostPid returns the last pid in a status file.
func innermostPid(status string) int {
	for _, line := range strings.Split(status, "\n") {
		if pids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			fields := strings.Fields(pids)
			if len(fields) == 0 {
				return 0
			}
			pid, err := strconv.Atoi(fields[len(fields)-1])
			if err != nil {
				return 0
			}
			return pid
		}
	}
	return 0
}
