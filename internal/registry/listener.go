// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// backlog is the number of connections that may wait to be accepted. The kernel applies a bound,
// too.
const backlog = 4096

// listener accepts connections without the Go runtime's poller. The poller would wake for each
// connection, even between batches.
type listener struct {
	socket, wake int // wake becomes readable when stop is called
}

// openListener listens at path, and removes an earlier agent's socket. close does not remove the
// file, because a later agent may have replaced the file.
func openListener(path string, mode os.FileMode) (*listener, error) {
	if err := clearPath(path); err != nil {
		return nil, err
	}
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("make the agent's socket: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(socket)
		return nil, fmt.Errorf("make the eventfd that stops the listener: %w", err)
	}
	l := &listener{socket, wake}
	if err := l.bind(path, mode); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *listener) bind(path string, mode os.FileMode) error {
	if err := unix.Bind(l.socket, &unix.SockaddrUnix{Name: path}); err != nil {
		return fmt.Errorf("make the agent's socket %s: %w", path, err)
	}
	if err := os.Chmod(path, mode); err != nil {
		return fmt.Errorf("set the rights of the agent's socket: %w", err)
	}
	// receive distinguishes packets from the end of a connection by the packets' credentials.
	if err := unix.SetsockoptInt(l.socket, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		return fmt.Errorf("enable credentials on the agent's socket: %w", err)
	}
	if err := passRights(l.socket, false); err != nil && !errors.Is(err, unix.ENOPROTOOPT) {
		return fmt.Errorf("refuse descriptors on the agent's socket: %w", err)
	}
	if err := unix.Listen(l.socket, backlog); err != nil {
		return fmt.Errorf("listen at the agent's socket: %w", err)
	}
	return nil
}

// stop ends all current and later waits.
func (l *listener) stop() {
	_, _ = unix.Write(l.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

func (l *listener) close() {
	unix.Close(l.socket)
	unix.Close(l.wake)
}

// wait waits until a connection waits or stop is called. wait may return early.
func (l *listener) wait() {
	_, _ = unix.Poll([]unix.PollFd{
		{Fd: int32(l.wake), Events: unix.POLLIN},
		{Fd: int32(l.socket), Events: unix.POLLIN},
	}, -1)
}

// pauseBatch waits for batchInterval or until stop is called. pauseBatch may return early.
func (l *listener) pauseBatch() {
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(l.wake), Events: unix.POLLIN}}, int(batchInterval.Milliseconds()))
}

// accept accepts the next connection; ok is false if no connection waits.
func (l *listener) accept() (c rawConn, ok bool, err error) {
	c.fd, _, err = unix.Accept4(l.socket, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	switch {
	case err == nil:
		return c, true, nil
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNABORTED):
		return c, false, nil
	default:
		return c, false, fmt.Errorf("accept a registration: %w", err)
	}
}

// rawConn is an accepted connection that is not in the runtime's poller. Most connections carry a
// registration, which the server reads immediately. To add each connection to the poller would take
// longer than the read.
type rawConn struct{ fd int }

// arrived returns the message of the connection, if the message has already arrived.
func (c rawConn) arrived() (message []byte, came bool) { return receiveNow(c.fd) }

func receiveNow(fd int) (message []byte, came bool) {
	message, _, err := receive(fd)
	return message, err == nil && len(message) > 0
}

// send sends a packet, if the socket's buffer has room for the packet.
func (c rawConn) send(packet []byte) {
	_ = unix.Sendto(c.fd, packet, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
}

// conn returns the connection as a net.UnixConn, and closes the rawConn.
func (c rawConn) conn() (*net.UnixConn, error) {
	file := os.NewFile(uintptr(c.fd), "connection")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("keep a connection: %w", err)
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, fmt.Errorf("keep a connection: it is a %T", conn)
	}
	return unixConn, nil
}

func (c rawConn) close() {
	drain(c.fd)
	_ = unix.Close(c.fd)
}
