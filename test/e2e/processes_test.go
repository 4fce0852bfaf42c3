// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// nodeProcesses returns the pids on this machine of the node's processes for which the condition
// holds.
func nodeProcesses(t *testing.T, condition func(cgroup, command string) bool) []int {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, dir := range dirs {
		// The process may end at any time.
		cgroup, err := os.ReadFile(dir + "/cgroup")
		if err != nil || !strings.Contains(string(cgroup), "/nri-vgpu-clusters/"+*name+"/") {
			continue
		}
		command, err := os.ReadFile(dir + "/cmdline")
		if err != nil || len(command) == 0 || !condition(string(cgroup), strings.ReplaceAll(string(command), "\x00", " ")) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

func isAgent(_, command string) bool {
	return strings.HasPrefix(command, "/usr/local/nri-vgpu/bin/nri-vgpu --config")
}

// agentPid returns the pid of the agent's process.
func agentPid(t *testing.T) int {
	t.Helper()
	pids := nodeProcesses(t, isAgent)
	if len(pids) != 1 {
		t.Fatalf("the agent is %d processes", len(pids))
	}
	return pids[0]
}

// guardPid returns the pid of the guard that the runtime has started. guardPid waits until the
// guard's stand-in also runs.
func guardPid(t *testing.T) int {
	t.Helper()
	var pids []int
	eventually.Holds(t, patience, "the guard has a stand-in", func() bool {
		pids = nodeProcesses(t, func(_, command string) bool {
			return strings.Contains(command, "/"+paths.GuardProgram)
		})
		return len(pids) == 2
	})
	for i, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pids[1-i]))
		if err != nil {
			t.Fatal(err)
		}
		_, after, _ := strings.Cut(string(stat), ") ")
		if strings.Fields(after)[1] == strconv.Itoa(pid) {
			return pid
		}
	}
	t.Fatalf("neither of the processes %v is the other process's parent", pids)
	return 0
}

func signal(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Errorf("signal %v to process %d: %v", sig, pid, err)
	}
}

// stopped stops the agent, like a hung agent, until the returned function is called or the test
// ends.
func stopped(t *testing.T) (resume func()) {
	t.Helper()
	pid := agentPid(t)
	signal(t, pid, syscall.SIGSTOP)
	hangs := true
	resume = func() {
		if hangs {
			hangs = false
			signal(t, pid, syscall.SIGCONT)
		}
	}
	t.Cleanup(resume)
	return resume
}

// away removes the agent from the node until the returned function is called or the test ends.
func away(t *testing.T) (back func()) {
	t.Helper()
	if err := bed.StopAgent(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	gone := true
	back = func() {
		if gone {
			gone = false
			if err := bed.StartAgent(context.Background(), patience); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(back)
	return back
}

// guarded ensures that containerd has loaded the guard, as on every node that was booted since
// nri-vgpu was installed.
func guarded(t *testing.T) {
	t.Helper()
	loaded := func() bool {
		_, ok, err := guardfile.Loaded(filepath.Join(bed.Cluster.Root(), "run/nri-vgpu"))
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if loaded() {
		return
	}
	if err := bed.Cluster.Restart(t.Context(), "containerd"); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, patience, "the guard runs", loaded)
	if err := bed.WaitNodeReady(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	waitCapacity(t, patience)
}
