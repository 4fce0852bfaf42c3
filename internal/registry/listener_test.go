// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// journal is a log for concurrent writers.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) lines() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Count(j.text.String(), "\n")
}

func TestASocketThatCannotBeMadeIsAnError(t *testing.T) {
	dir := t.TempDir()
	file, full := filepath.Join(dir, "file"), filepath.Join(dir, "full")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(full, "inside"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"its directory is a file":       filepath.Join(file, "sock"),
		"a directory is in its place":   full,
		"its path is too long for Unix": filepath.Join(dir, strings.Repeat("x", 200)),
	} {
		if l, err := openListener(path, 0o666); err == nil {
			l.close()
			t.Errorf("%s: the agent listens", name)
		}
		if l, err := listen(path, 0o600); err == nil {
			l.Close()
			t.Errorf("%s: the agent listens for root", name)
		}
	}
}

// TestTroubleWithTheSocketsIsLogged checks that the agent logs the failure of a socket once, and
// does not log its own end as a failure.
func TestTroubleWithTheSocketsIsLogged(t *testing.T) {
	h := newHouse(t)
	dir := filepath.Dir(h.Path)
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var servers, admins journal
	h.Log = slog.New(slog.NewTextHandler(&servers, nil))
	admin := &Admin{Path: filepath.Join(dir, "admin.sock"), Log: slog.New(slog.NewTextHandler(&admins, nil))}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { h.Server.Run(ctx) })
	all.Go(func() { admin.Run(ctx) })
	eventually.Holds(h.T, patience, "both are logged", func() bool { return servers.lines() > 0 && admins.lines() > 0 })
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(h.T, patience, "both listen", func() bool { return listening(h.Path) && listening(admin.Path) })
	cancel()
	all.Wait()
	if servers.lines() != 1 || admins.lines() != 1 {
		t.Errorf("%d and %d lines were logged, want one each", servers.lines(), admins.lines())
	}
}

func TestARepeatedFailureIsLoggedOnce(t *testing.T) {
	var log journal
	s := &Server{Log: slog.New(slog.NewTextHandler(&log, nil))}
	for i, tt := range []struct {
		err  string
		want int // lines in the log
	}{{"full", 1}, {"full", 1}, {"gone", 2}, {"gone", 2}, {"full", 3}} {
		s.logOnce(errors.New(tt.err))
		if got := log.lines(); got != tt.want {
			t.Errorf("after failure %d, %q, the log has %d lines, want %d", i, tt.err, got, tt.want)
		}
	}
}

// descriptorsOpen counts the open descriptors of this process.
func descriptorsOpen(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestAListenerLeavesNoDescriptors(t *testing.T) {
	path, before := filepath.Join(t.TempDir(), "sock"), descriptorsOpen(t)
	const times = 100
	for range times {
		l, err := openListener(path, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		l.close()
	}
	if more := descriptorsOpen(t) - before; more >= times/2 {
		t.Errorf("%d descriptors are left of %d listeners", more, times)
	}
}

func TestOnlyUnixConnectionsAreKept(t *testing.T) {
	for domain, want := range map[int]bool{unix.AF_UNIX: true, unix.AF_INET: false} {
		fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := rawConn{fd}.conn()
		if (err == nil) != want {
			t.Errorf("a socket of domain %d: %v", domain, err)
		}
		if err == nil {
			conn.Close()
		}
	}
}

// empty sends an empty packet.
func empty(t *testing.T, conn net.Conn) {
	t.Helper()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(raw.Control(func(fd uintptr) { err = unix.Sendmsg(int(fd), nil, nil, nil, 0) }), err); err != nil {
		t.Fatal(err)
	}
}

// TestAnEmptyPacketIsNoMessage checks that an empty packet carries no claim, and is not a malformed
// message.
func TestAnEmptyPacketIsNoMessage(t *testing.T) {
	h := newHouse(t)
	h.contain(os.Getpid(), id)
	l, err := openListener(h.Path, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	early := h.dial()
	empty(t, early)
	if _, err := early.Write(message(7, uint32(os.Getpid()))); err != nil {
		t.Fatal(err)
	}
	// The two packets arrive before the server accepts the connection.
	if err := h.acceptBatch(t.Context(), l, rate.NewLimiter(0, 100)); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(h.T, patience, "the message behind it is read", func() bool {
		h.Registry.settle()
		return len(h.Registry.Processes(id)) == 1
	})
	late := h.dial()
	if err := h.acceptBatch(t.Context(), l, rate.NewLimiter(0, 100)); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(h.T, patience, "it is waited for", func() bool { return h.queue.open() == 1 })
	empty(t, late)
	eventually.Holds(h.T, patience, "it is waited for no more", func() bool { return h.queue.open() == 0 })
	h.Registry.mu.Lock()
	defer h.Registry.mu.Unlock()
	if h.Registry.invalid != 0 {
		t.Errorf("%d messages are invalid", h.Registry.invalid)
	}
}

// TestConnectionsOfUnlistedProcessesCostMore checks that a connection of an unlisted process takes
// more tokens, because the agent has to read procfs for the process.
func TestConnectionsOfUnlistedProcessesCostMore(t *testing.T) {
	h := newHouse(t)
	h.contain(os.Getpid(), id)
	l, err := openListener(h.Path, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	pace := rate.NewLimiter(0, 100)
	for i, want := range []float64{96, 95, 94} {
		h.say(message(7, uint32(os.Getpid())))
		if err := h.acceptBatch(t.Context(), l, pace); err != nil {
			t.Fatal(err)
		}
		if got := pace.Tokens(); got != want {
			t.Errorf("after %d connections there is room for %v, want %v", i+1, got, want)
		}
		h.Registry.settle()
	}
}

// TestBoundsFollowTheDescriptorsThatThereAre checks that the registry leaves some of the process's
// descriptors to other parts of the agent.
func TestBoundsFollowTheDescriptorsThatThereAre(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 800, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	if r := New(); r.total != 200 || r.mostArrivals != 50 || r.perContainer != 256 {
		t.Errorf("with 800 descriptors %d processes are listed, %d of a container, and %d arrivals wait", r.total, r.perContainer, r.mostArrivals)
	}
}
