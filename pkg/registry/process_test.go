package registry

import (
	"errors"
	"os"
	"os/exec"
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

	// In a pid namespace of its own, as in a container.
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

// A process chooses how long its command line is.
func TestCommandIsBounded(t *testing.T) {
	child := exec.Command("sleep", append([]string{"60"}, slices.Repeat([]string{strings.Repeat("0", 100<<10)}, 10)...)...)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
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
