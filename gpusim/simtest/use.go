// SPDX-License-Identifier: Apache-2.0

package simtest

import (
	"bufio"
	"os/exec"
	"strconv"
	"testing"
)

// Use starts a process that uses a GPU without CUDA, as "gpusim hold" with
// these options does, and returns its pid. EndUse or the end of the test kills the process.
func (m *Machine) Use(t testing.TB, gpu int, bytes uint64, options ...string) (pid int) {
	t.Helper()
	args := append([]string{"hold", "--gpu", strconv.Itoa(gpu), "--memory", strconv.FormatUint(bytes, 10)}, options...)
	command := m.Command(t, m.tool, append(args, m.Dir)...)
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("gpusim %q: %q, %v", args, line, err)
	}
	if m.users == nil {
		m.users = map[int]*exec.Cmd{}
	}
	m.users[command.Process.Pid] = command
	return command.Process.Pid
}

// EndUse kills a process that Use started.
func (m *Machine) EndUse(t testing.TB, pid int) {
	t.Helper()
	command := m.users[pid]
	if err := command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = command.Wait()
}
