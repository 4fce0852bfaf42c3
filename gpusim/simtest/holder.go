// SPDX-License-Identifier: Apache-2.0

package simtest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Holder is a process that uses GPUs on command, below the driver's API. Tests observe a Holder
// from outside.
type Holder struct {
	// Pid is its process id.
	Pid     int
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
}

// StartHolder starts a holder on the machine. The holder ends with the test.
func StartHolder(t testing.TB, m *Machine) *Holder {
	t.Helper()
	return start(t, m, nil)
}

// StartContainedHolder starts a holder in a new pid namespace, as in a
// container. The holder is process 1 in the namespace, and its Pid is the pid in the caller's
// namespace.
func StartContainedHolder(t testing.TB, m *Machine) *Holder {
	t.Helper()
	return start(t, m, &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
	})
}

// HolderProgram builds the program of a holder, for tests that start the program themselves.
func HolderProgram(t testing.TB) string {
	t.Helper()
	program, err := buildHolderOnce()
	if err != nil {
		t.Fatal(err)
	}
	return program
}

func start(t testing.TB, m *Machine, attributes *syscall.SysProcAttr) *Holder {
	t.Helper()
	h := &Holder{command: m.Command(t, HolderProgram(t))}
	h.command.SysProcAttr = attributes
	var err error
	if h.in, err = h.command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := h.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	h.out = bufio.NewReader(out)
	if err := h.command.Start(); err != nil {
		t.Fatal(err)
	}
	h.Pid = h.command.Process.Pid
	return h
}

// Hold allocates memory of a GPU, or frees it if bytes is negative. Hold reports whether the GPU
// had enough memory.
func (h *Holder) Hold(t testing.TB, gpu int, bytes int64) bool {
	t.Helper()
	return h.order(t, "hold", gpu, bytes)
}

// Run keeps a GPU busy for this duration from the call on.
func (h *Holder) Run(t testing.TB, gpu int, duration time.Duration) {
	t.Helper()
	if !h.order(t, "run", gpu, duration.Nanoseconds()) {
		t.Fatal("the launch queue is full")
	}
}

// Kill kills the process with SIGKILL.
func (h *Holder) Kill(t testing.TB) {
	t.Helper()
	if err := h.command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := h.command.Wait(); !errors.As(err, &exit) {
		t.Fatal(err)
	}
}

func (h *Holder) order(t testing.TB, order string, gpu int, amount int64) bool {
	t.Helper()
	if _, err := fmt.Fprintln(h.in, order, gpu, amount); err != nil {
		t.Fatal(err)
	}
	answer, err := h.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(answer) == "ok"
}

// buildHolderOnce compiles testdata/holder.c and returns the program's path. A rename replaces the
// program, because another package's tests may be running the program.
var buildHolderOnce = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(root(), "gpusim")
	program := filepath.Join(root(), "build", "gpusim-holder")
	core, err := filepath.Glob(filepath.Join(dir, "src", "*.c"))
	if err != nil {
		return "", err
	}
	args := append([]string{"-std=gnu11", "-D_GNU_SOURCE", "-pthread", "-I" + filepath.Join(dir, "src"),
		"-o", program + ".new", filepath.Join(dir, "simtest", "testdata", "holder.c")}, core...)
	return program, underLock(func() error {
		if output, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("build holder: %w:\n%s", err, output)
		}
		return os.Rename(program+".new", program)
	})
})
