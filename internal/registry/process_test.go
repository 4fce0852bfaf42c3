// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func TestPin(t *testing.T) {
	own, handle, err := HostProc.Pin(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	if own.PID != os.Getpid() || own.Started == 0 || own.UID != uint32(os.Geteuid()) || own.Cgroup == "" || own.Name == "" {
		t.Errorf("got %+v", own)
	}
	again, err := HostProc.Look(os.Getpid())
	if err != nil || again != own {
		t.Errorf("looked again: %+v, %v", again, err)
	}

	// The child has a separate pid namespace, like a process in a container.
	child := exec.Command("sleep", "60")
	child.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	process, handle, err := HostProc.Pin(child.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	if process.InnerPID != 1 || process.Started < own.Started {
		t.Errorf("got %+v", process)
	}
	if handle.Ended() {
		t.Error("a process that runs has ended")
	}
	if err := handle.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	if !handle.Ended() {
		t.Error("a killed process runs")
	}
	if _, _, err := HostProc.Pin(child.Process.Pid); !errors.Is(err, ErrGone) {
		t.Errorf("the ended process: %v", err)
	}
}

// TestCommandIsBounded checks that Command shortens a long command line. A process chooses the
// length of its command line.
func TestCommandIsBounded(t *testing.T) {
	child := exec.Command("sleep", append([]string{"60"}, slices.Repeat([]string{strings.Repeat("0", 100<<10)}, 10)...)...)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
	// The kernel sets a new program's arguments some time after the program's name.
	for line := []byte(nil); len(line) == 0; {
		line, _ = HostProc.read(child.Process.Pid, "cmdline")
	}
	process, err := HostProc.Look(child.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	command, err := HostProc.Command(process)
	runtime.ReadMemStats(&after)
	if err != nil || len(command) != maxCommand || !strings.HasPrefix(command, "sleep 60 0000") {
		t.Errorf("got %d bytes, %.20q, %v", len(command), command, err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 256<<10 {
		t.Errorf("it took %d bytes", took)
	}
}

func TestPrintable(t *testing.T) {
	for line, want := range map[string]string{
		"": "", "\x00": "", "sh": "sh", "sleep\x0060\x00": "sleep 60", "a\tb\xff\x1b[0m": "a?b??[0m", "ü\x00\x00x": "ü  x",
		strings.Repeat("x", maxCommand): strings.Repeat("x", maxCommand), strings.Repeat("x", maxCommand+1): strings.Repeat("x", maxCommand),
	} {
		if got := printable([]byte(line)); got != want {
			t.Errorf("printable(%q) = %q, want %q", line, got, want)
		}
	}
}

// fake returns a procfs with a file of process 7.
func fake(t *testing.T, name, content string) Proc {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "7"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "7", name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return Proc(dir)
}

func TestFilesOfProcessesAreReadWholeUpToABound(t *testing.T) {
	for _, size := range []int{1, 4095, 4096, 4097, 8192, maxProcFile - 1, maxProcFile, maxProcFile + 1, 2 * maxProcFile} {
		content := strings.Repeat("x", size-1) + "y"
		got, err := fake(t, "status", content).read(7, "status")
		if err != nil || string(got) != content[:min(size, maxProcFile)] {
			t.Errorf("a file of %d bytes: %d are read, %v", size, len(got), err)
		}
	}
	if _, err := fake(t, "status", "").read(7, "status"); !errors.Is(err, ErrGone) {
		t.Errorf("an empty file: %v", err)
	}
	if _, err := fake(t, "status", "").read(8, "status"); !errors.Is(err, ErrGone) {
		t.Errorf("no file: %v", err)
	}
}

// TestNamesArePrintable checks the name of a process that has chosen bytes of no character and an
// escape sequence. The kernel escapes neither in the process's status.
func TestNamesArePrintable(t *testing.T) {
	child := exec.Command("sh", "-c", `printf '\377\033[2J' >/proc/$$/comm && echo && read _`)
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	process, err := HostProc.Look(child.Process.Pid)
	if err != nil || process.Name != "??[2J" {
		t.Errorf("the name is %q, %v", process.Name, err)
	}
}

func TestReadStatus(t *testing.T) {
	for status, want := range map[string]Process{
		"Name:\tsh\nUid:\t1\t2\t3\t4\nNSpid:\t700\t80\t9\n": {Name: "sh", UID: 2, InnerPID: 9},
		"Name:\ta b:\tc\nNSpid:\t700\nUid:\t1\t4294967294":  {Name: "a b:?c", UID: 4294967294, InnerPID: 700},
		"Uid:\t1\nNSpid:\t\n":                               {},
		"":                                                  {},
	} {
		var got Process
		if got.readStatus([]byte(status)); got != want {
			t.Errorf("%q is read as %+v, want %+v", status, got, want)
		}
	}
}

func TestParseStat(t *testing.T) {
	const rest = " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21"
	for _, name := range []string{"sh", "a b", "x) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 99 (y", "((("} {
		if got, err := parseStat([]byte("77 (" + name + ")" + rest)); err != nil || got != 4711 {
			t.Errorf("%q: got %d, %v", name, got, err)
		}
	}
	for _, bad := range []string{"", "77 (sh)", "77 (sh) S 1", "77 (sh) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 x 20"} {
		if got, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q: got %d", bad, got)
		}
	}
}
