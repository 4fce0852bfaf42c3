// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// slowToClose returns a socket whose last descriptor takes very long to close, because the socket's
// peer never reads the sent data.
func slowToClose(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	to := &unix.SockaddrInet4{Port: listener.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}
	if err := errors.Join(unix.Connect(fd, to), unix.SetNonblock(fd, true),
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 20})); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = unix.Write(fd, make([]byte, 1<<20))
	}
	return fd
}

// send connects, sends packets and hangs up. The last packet carries a descriptor of a socket that
// no other process has.
func (h *house) send(packets ...[]byte) {
	h.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		h.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: h.Path}); err != nil {
		h.Fatal(err)
	}
	slow := slowToClose(h.T)
	defer unix.Close(slow)
	for i, packet := range packets {
		var rights []byte
		if i == len(packets)-1 {
			rights = unix.UnixRights(slow)
		}
		if err := unix.Sendmsg(fd, packet, rights, nil, 0); err != nil {
			h.Fatal(err)
		}
	}
}

// TestDescriptorsAreNotWaitedFor checks that a client cannot delay the server by descriptors that
// take long to close. The receiver of a message closes the descriptors that arrive with the
// message.
func TestDescriptorsAreNotWaitedFor(t *testing.T) {
	registration := message(1, uint32(os.Getpid()))
	for _, tt := range []struct {
		name    string
		packets [][]byte
	}{
		{"with a registration", [][]byte{registration}},
		{"with what is no message", [][]byte{{0}}},
		{"behind a registration", [][]byte{registration, {0}}},
		{"with a question", [][]byte{[]byte("NVGQ")}},
		{"with a question about what it holds", [][]byte{[]byte("NVGH")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			h.contain(os.Getpid(), id)
			l, err := openListener(h.Path, 0o666)
			if err != nil {
				t.Fatal(err)
			}
			if err := passRights(l.socket, true); err != nil && !errors.Is(err, unix.ENOPROTOOPT) { // as before Linux 6.16
				t.Fatal(err)
			}
			h.send(tt.packets...) // not accepted yet: the message has the last descriptor
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { _ = h.acceptLoop(ctx, l); close(done) }()
			h.say(registration)
			begin := time.Now()
			eventually.Holds(h.T, patience, "another client is heard", func() bool { return len(h.Registry.Processes(id)) == 1 && h.queue.open() == 0 && h.holding.open() == 0 })
			cancel()
			l.stop()
			<-done
			l.close()
			if took := time.Since(begin); took > time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// TestDescriptorsAreNotSent checks that a kernel with SO_PASSRIGHTS rejects descriptors for the
// agent. Descriptors whose closing hangs could stop the agent from accepting connections.
func TestDescriptorsAreNotSent(t *testing.T) {
	h := newHouse(t)
	l, err := openListener(h.Path, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: h.Path}); err != nil {
		t.Fatal(err)
	}
	var want error
	if passRights(fd, true) == nil {
		want = unix.EPERM
	}
	packet := message(1, uint32(os.Getpid()))
	if err := unix.Sendmsg(fd, packet, unix.UnixRights(0), nil, 0); !errors.Is(err, want) {
		t.Errorf("with a descriptor: %v, want %v", err, want)
	}
	if err := unix.Sendmsg(fd, packet, nil, nil, 0); err != nil {
		t.Errorf("without: %v", err)
	}
}
