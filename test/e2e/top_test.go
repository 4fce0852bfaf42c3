// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/terminal"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// TestTopOnATerminal checks kubectl vgpu top on a terminal. The command lists the running
// containers, reacts to keys, to the terminal's size and to changes, and always restores the
// terminal at its end.
func TestTopOnATerminal(t *testing.T) {
	waitRegistered(t)
	create(t, testbed.Pod("large", filler("main", testbed.Limits{testbed.Memory: 2048})))
	create(t, testbed.Pod("busy", testbed.Container("main", testbed.Limits{testbed.Memory: 1024, testbed.Cores: 25},
		"spin", "--kernel-us", "2000", "--duration", "3600")))
	running(t, "large")
	works(t, "busy")
	filled(t, "large", "main")

	settings := filepath.Join(t.TempDir(), "settings")
	screen := terminal.Start(t, 130, 24, bed.Plugins(), "stty -a > "+settings+"; echo a line before; while :; do "+
		bed.Kubectl()+" vgpu top; echo ended with $?; stty -a | cmp - "+settings+" && echo as before; read again; done")
	shows := func(what string, wants ...string) string {
		t.Helper()
		return terminal.Await(t, screen, patience, what, func(text string) bool {
			for _, want := range wants {
				if !strings.Contains(text, want) {
					return false
				}
			}
			return true
		})
	}
	first := shows("both pods, by memory", "default/large/main", "2048/2048 MiB", "default/busy/main", "/25 %", "by memory", "||||")
	t.Logf("%s:\n%s", screen.Kind(), first)
	if strings.Contains(first, "a line before") || !inOrder(first, "default/large/main", "default/busy/main") {
		t.Errorf("the screen does not show top, by memory:\n%s", first)
	}
	screen.Type("t")
	terminal.Await(t, screen, patience, "the pods by time", func(text string) bool {
		return strings.Contains(text, "by time") && inOrder(text, "default/busy/main", "default/large/main")
	})
	screen.Resize(60, 8)
	terminal.Await(t, screen, patience, "the keys in the last of 8 lines", func(text string) bool {
		lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
		return len(lines) == 8 && strings.HasPrefix(lines[7], "m memory") && strings.Contains(lines[0], "nri-vgpu")
	})
	screen.Resize(130, 24)
	if err := bed.Delete(t.Context(), "large"); err != nil {
		t.Fatal(err)
	}
	terminal.Await(t, screen, patience, "only the remaining pod", func(text string) bool {
		return strings.Contains(text, "default/busy/main") && !strings.Contains(text, "default/large/main")
	})

	for _, end := range []struct {
		how string
		do  func()
	}{
		{"q", func() { screen.Type("q") }},
		{"ctrl-c", func() { screen.Type("\x03") }},
		{"SIGINT", func() { signalTop(t, "INT") }},
		{"SIGTERM", func() { signalTop(t, "TERM") }},
	} {
		shows("top, before "+end.how, "default/busy/main", "q quit")
		end.do()
		after := shows("the terminal as it was, after "+end.how, "a line before", "ended with 0", "as before")
		if strings.Contains(after, "q quit") || strings.Contains(after, "^[") {
			t.Errorf("after %s the screen is\n%s", end.how, after)
		}
		eventually.Holds(t, patience, "no program queries the agent", func() bool {
			return len(nodeProcesses(t, func(_, command string) bool { return strings.HasPrefix(command, "vgpuctl get all") })) == 0
		})
		screen.Type("\r")
	}
}

// inOrder reports whether a text contains first before second.
func inOrder(text, first, second string) bool {
	i, j := strings.Index(text, first), strings.Index(text, second)
	return i >= 0 && j > i
}

// signalTop sends a signal to the only kubectl-vgpu of this test.
func signalTop(t *testing.T, name string) {
	t.Helper()
	wanted := "KUBECONFIG=" + bed.Cluster.Kubeconfig()
	found := 0
	for _, pid := range pidsOf(t, "kubectl-vgpu") {
		environment, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
		if err != nil || !strings.Contains(string(environment), wanted) {
			continue
		}
		found++
		if err := syscall.Kill(pid, map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM}[name]); err != nil {
			t.Error(err)
		}
	}
	if found != 1 {
		t.Errorf("%d processes of kubectl vgpu were found", found)
	}
}

// pidsOf returns the processes of a program, by its name in their command lines.
func pidsOf(t *testing.T, program string) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		name, _, _ := strings.Cut(string(line), "\x00")
		if err == nil && filepath.Base(name) == program {
			pids = append(pids, pid)
		}
	}
	return pids
}
