// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

const patience = 10 * time.Second

// TestMain runs the tests, or a client of some tests if the environment names a socket.
func TestMain(m *testing.M) {
	if path := os.Getenv("REGISTRY_TEST_SOCKET"); path != "" {
		os.Exit(client(path))
	}
	os.Exit(m.Run())
}

// client registers after the first byte of its input, and runs until its input ends.
func client(path string) int {
	_, _ = os.Stdin.Read(make([]byte, 1))
	conn, err := net.Dial("unixpacket", path)
	if err == nil {
		_, err = conn.Write(message(7, uint32(os.Getpid())))
		conn.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_, _ = os.Stdin.Read(make([]byte, 1))
	return 0
}

// house is a server with a procfs in which the server looks up its clients. The procfs has the
// host's files, except for the clients' cgroups.
type house struct {
	*testing.T
	*Server
	proc string
}

func newHouse(t *testing.T) *house {
	t.Helper()
	dir, err := os.MkdirTemp("", "registry") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	h := &house{T: t, proc: filepath.Join(dir, "proc")}
	h.Server = &Server{Path: filepath.Join(dir, "agent", "agent.sock"), Registry: New(), Proc: Proc(h.proc), Log: slog.New(slog.DiscardHandler)}
	return h
}

func (h *house) serve() {
	h.Helper()
	h.start()
	eventually.Holds(h.T, patience, "the socket is there", func() bool { return listening(h.Path) })
}

// listening reports whether a process listens at a socket, by a flag in the kernel's list of
// sockets. The server would notice a connection.
func listening(path string) bool {
	const acceptsConnections = "00010000"
	table, _ := os.ReadFile("/proc/net/unix")
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) == 8 && fields[7] == path && fields[3] == acceptsConnections {
			return true
		}
	}
	return false
}

func (h *house) start() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { h.Server.Run(ctx); close(done) }()
	h.Cleanup(func() { cancel(); <-done })
}

// contain puts a process into a container in the house's procfs.
func (h *house) contain(pid int, container string) {
	h.Helper()
	dir := filepath.Join(h.proc, strconv.Itoa(pid))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		h.Fatal(err)
	}
	for _, name := range []string{"stat", "status"} {
		content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), name))
		if err != nil {
			h.Fatal(err)
		}
		h.write(filepath.Join(dir, name), string(content))
	}
	h.write(filepath.Join(dir, "cgroup"), "0::/kubepods/pod"+uid+"/"+container+"\n")
}

func (h *house) write(path, content string) {
	h.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		h.Fatal(err)
	}
}

func (h *house) dial() net.Conn {
	h.Helper()
	var conn net.Conn
	eventually.Holds(h.T, patience, "it can be reached", func() (ok bool) {
		var err error
		conn, err = net.Dial("unixpacket", h.Path)
		return err == nil
	})
	h.Cleanup(func() { conn.Close() })
	return conn
}

// say connects, writes bytes and hangs up.
func (h *house) say(raw []byte) {
	h.Helper()
	conn := h.dial()
	defer conn.Close()
	// A rejected client may find the connection closed.
	if _, err := conn.Write(raw); err != nil && !errors.Is(err, syscall.EPIPE) {
		h.Fatal(err)
	}
}

func (h *house) outcome(o Outcome) uint64 {
	h.Registry.mu.Lock()
	defer h.Registry.mu.Unlock()
	return h.Registry.outcomes[o]
}

func TestAProcessIsKnownByTheKernel(t *testing.T) {
	h := newHouse(t)
	h.contain(os.Getpid(), id)
	h.serve()
	own := uint32(os.Getpid())
	h.say(message(3, own))
	eventually.Holds(h.T, patience, "it is registered and heard", func() bool {
		list := h.Registry.Processes(id)
		return len(list) == 1 && list[0].Claim != nil
	})
	entry := h.Registry.Processes(id)[0]
	if entry.PID != os.Getpid() || entry.PodUID != uid || entry.UID != uint32(os.Geteuid()) || entry.Started == 0 {
		t.Errorf("got %+v", entry)
	}
	if slot, ok := entry.Slot(); !ok || slot != 3 {
		t.Errorf("its slot is %d, %v", slot, ok)
	}

	// The kernel's data overrides the process's claim.
	h.say(message(4, own+1))
	eventually.Holds(h.T, patience, "the lie is heard", func() bool { return h.Registry.Processes(id)[0].Claim.Slot == 4 })
	if slot, ok := h.Registry.Processes(id)[0].Slot(); ok {
		t.Errorf("it lied about its pid, and its slot is %d", slot)
	}
	if h.outcome(Registered) != 1 || h.outcome(Known) != 1 {
		t.Errorf("outcomes: %v", h.Registry.outcomes)
	}
}

func TestWhatIsNoMessageChangesNothing(t *testing.T) {
	h := newHouse(t)
	h.contain(os.Getpid(), id)
	h.serve()
	for _, raw := range [][]byte{{0}, []byte("GET / HTTP/1.1"), make([]byte, 4000), message(1, 2)[:15]} {
		h.say(raw)
	}
	eventually.Holds(h.T, patience, "all are refused", func() bool {
		h.Registry.mu.Lock()
		defer h.Registry.mu.Unlock()
		return h.Registry.invalid == 4
	})
	if list := h.Registry.Processes(id); len(list) != 0 {
		t.Errorf("got %+v", list)
	}
}

func TestAProcessOutsideOfContainersIsNotKnown(t *testing.T) {
	h := newHouse(t)
	h.Proc = HostProc
	h.serve()
	h.say(message(0, 1))
	eventually.Holds(h.T, patience, "it is refused", func() bool { return h.outcome(Foreign) == 1 })
	if counts := h.Registry.counts(); len(counts) != 0 {
		t.Errorf("known are %v", counts)
	}
}

// register starts a process that registers. The process ends when the test calls leave.
func (h *house) register(container string) (leave func()) {
	h.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), "REGISTRY_TEST_SOCKET="+h.Path)
	child.Stderr = os.Stderr
	stdin, err := child.StdinPipe()
	if err != nil {
		h.Fatal(err)
	}
	if err := child.Start(); err != nil {
		h.Fatal(err)
	}
	h.contain(child.Process.Pid, container)
	if _, err := stdin.Write([]byte{1}); err != nil {
		h.Fatal(err)
	}
	return func() {
		stdin.Close()
		if err := child.Wait(); err != nil {
			h.Error(err)
		}
	}
}

func TestAProcessIsForgottenWhenItEnds(t *testing.T) {
	h := newHouse(t)
	h.serve()
	leave := h.register(id)
	eventually.Holds(h.T, patience, "it is known", func() bool { return len(h.Registry.Processes(id)) == 1 })
	process := h.Registry.Processes(id)[0].Process
	if !h.Registry.Has(process) {
		t.Error("it is not known by name")
	}
	leave()
	eventually.Holds(h.T, patience, "it is forgotten", func() bool { return len(h.Registry.Processes(id)) == 0 })
	if h.Registry.Has(process) || len(h.Registry.counts()) != 0 {
		t.Error("an ended process is known")
	}
}

// sleepers starts processes of a container.
func (h *house) sleepers(n int, container string) (processes []Process, handles []Handle) {
	h.Helper()
	for range n {
		child := exec.Command("sleep", "60")
		if err := child.Start(); err != nil {
			h.Fatal(err)
		}
		h.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
		h.contain(child.Process.Pid, container)
		process, handle, err := h.Proc.Pin(child.Process.Pid)
		if err != nil {
			h.Fatal(err)
		}
		processes, handles = append(processes, process), append(handles, handle)
	}
	return processes, handles
}

func TestAContainerHasNoMoreThanItsPart(t *testing.T) {
	h := newHouse(t)
	h.Registry.perContainer, h.Registry.total = 2, 3
	processes, handles := h.sleepers(3, id)
	for i, want := range []Outcome{Registered, Registered, Full} {
		if got := h.Registry.add(processes[i], handles[i], nil); got != want {
			t.Errorf("number %d: %s, want %s", i, got, want)
		}
	}
	processes, handles = h.sleepers(2, otherID)
	for i, want := range []Outcome{Registered, Full} {
		if got := h.Registry.add(processes[i], handles[i], nil); got != want {
			t.Errorf("the other container's number %d: %s, want %s", i, got, want)
		}
	}
	if counts := h.Registry.counts(); counts[id] != 2 || counts[otherID] != 1 {
		t.Errorf("counts are %v", counts)
	}
}

func TestAnEndedProcessIsUnlistedWhenItsPIDIsLookedUp(t *testing.T) {
	h := newHouse(t)
	processes, handles := h.sleepers(2, id)
	for i := range processes {
		h.Registry.add(processes[i], handles[i], nil)
	}
	if err := handles[0].Kill(); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(h.T, patience, "it is unlisted", func() bool { _, ok := h.Registry.known(processes[0].PID); return !ok })
	if counts := h.Registry.counts(); counts[id] != 1 || h.Registry.Has(processes[0]) {
		t.Errorf("counts are %v, want 1", counts)
	}
	if got, ok := h.Registry.known(processes[1].PID); !ok || got != processes[1] {
		t.Errorf("the other is %+v, %t", got, ok)
	}
}

// TestSlot checks that Slot returns the slot that a process claims, if the claim has the right pid.
func TestSlot(t *testing.T) {
	for name, tt := range map[string]struct {
		claim *Claim
		want  bool
	}{
		"it has sent nothing": {nil, false},
		"it knows its pid":    {&Claim{Slot: 7, InnerPID: 12}, true},
		"it claims another's": {&Claim{Slot: 7, InnerPID: 13}, false},
	} {
		slot, ok := Entry{Process{InnerPID: 12}, tt.claim}.Slot()
		if want := map[bool]uint32{true: 7}[tt.want]; ok != tt.want || slot != want {
			t.Errorf("%s: Slot() = %d, %t", name, slot, ok)
		}
	}
}

// TestAReusedPIDIsAnotherProcess checks that a process with a reused pid is a different process.
func TestAReusedPIDIsAnotherProcess(t *testing.T) {
	h := newHouse(t)
	processes, handles := h.sleepers(1, id)
	h.Registry.add(processes[0], handles[0], nil)
	successor, handle, err := h.Proc.Pin(processes[0].PID)
	if err != nil {
		t.Fatal(err)
	}
	successor.Started++
	successor.Container = otherID
	if got := h.Registry.add(successor, handle, nil); got != Registered {
		t.Errorf("the successor is %s", got)
	}
	if h.Registry.Has(processes[0]) || !h.Registry.Has(successor) || len(h.Registry.Processes(id)) != 0 {
		t.Errorf("known are %v", h.Registry.counts())
	}
}

// TestHalfOpenConnections checks that a silent client with a thousand open connections blocks no
// other client and occupies few goroutines.
func TestHalfOpenConnections(t *testing.T) {
	h := newHouse(t)
	h.contain(os.Getpid(), id)
	h.serve()
	before := runtime.NumGoroutine()
	for range 1000 {
		h.dial()
	}
	eventually.Holds(h.T, patience, "most were turned away", func() bool { return h.outcome(Busy) > 900 })
	if more := runtime.NumGoroutine() - before; more > maxWaitingPerContainer+10 {
		t.Errorf("%d goroutines wait for them", more)
	}
	defer h.register(otherID)()
	eventually.Holds(h.T, patience, "another one is known", func() bool { return len(h.Registry.Processes(otherID)) == 1 })
	eventually.Holds(h.T, patience, "nobody waits for them any more", func() bool { return h.queue.open() == 0 })
	if counts := h.Registry.counts(); counts[id] != 0 {
		t.Errorf("counts are %v", counts)
	}
}

// TestTheSocketComesAgain checks that processes reach the running agent even after another agent
// has replaced the socket. Running containers have mounted the socket's directory.
func TestTheSocketComesAgain(t *testing.T) {
	h := newHouse(t)
	h.contain(os.Getpid(), id)
	if err := os.MkdirAll(filepath.Dir(h.Path), 0o755); err != nil {
		t.Fatal(err)
	}
	// The previous agent was killed and left a socket at the path.
	if err := os.Symlink("/nowhere", h.Path); err != nil {
		t.Fatal(err)
	}
	h.start()
	eventually.Holds(h.T, patience, "it is a socket", func() bool {
		info, err := os.Stat(h.Path)
		return err == nil && info.Mode()&os.ModeSocket != 0 && info.Mode().Perm() == 0o666
	})
	if err := os.RemoveAll(filepath.Dir(h.Path)); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(h.T, patience, "it is there again", func() bool { _, err := os.Stat(h.Path); return err == nil })
	h.say(message(1, uint32(os.Getpid())))
	eventually.Holds(h.T, patience, "it answers", func() bool { return len(h.Registry.Processes(id)) == 1 })
}

func TestCgroupOfAnotherContainerInsideIsNotBelieved(t *testing.T) {
	h := newHouse(t)
	h.contain(os.Getpid(), id+"/kubepods/pod"+other+"/"+otherID)
	h.serve()
	h.say(message(0, 1))
	eventually.Holds(h.T, patience, "it is known", func() bool { return h.outcome(Registered) == 1 })
	if len(h.Registry.Processes(otherID)) != 0 || len(h.Registry.Processes(id)) != 1 {
		t.Errorf("counts are %v", h.Registry.counts())
	}
	if got := h.Registry.Processes(id)[0].Cgroup; !strings.HasSuffix(got, otherID) {
		t.Errorf("its cgroup is %q", got)
	}
}
