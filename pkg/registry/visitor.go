package registry

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// visitor is a connection that was accepted. Most bring a registration, which is heard
// in a moment: telling the runtime's poller of each would take longer than all else.
type visitor struct{ fd int }

// door is a socket at which visitors are waited for. The runtime's poller does not know
// it: that would be woken for each visitor, also while they gather.
type door struct {
	socket, wake int // wake is readable once the door is to close
}

// openDoor makes a socket, in place of the one that an earlier agent left. It listens
// until the file at its path is removed.
func openDoor(path string, mode os.FileMode) (*door, error) {
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
		return nil, fmt.Errorf("make the agent's socket: %w", err)
	}
	d := &door{socket, wake}
	if err := d.listen(path, mode); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

func (d *door) listen(path string, mode os.FileMode) error {
	if err := unix.Bind(d.socket, &unix.SockaddrUnix{Name: path}); err != nil {
		return fmt.Errorf("make the agent's socket %s: %w", path, err)
	}
	if err := os.Chmod(path, mode); err != nil {
		return fmt.Errorf("set the rights of the agent's socket: %w", err)
	}
	if err := unix.Listen(d.socket, backlog); err != nil {
		return fmt.Errorf("listen at the agent's socket: %w", err)
	}
	return nil
}

// backlog is how many may wait at a socket; the kernel has a bound of its own.
const backlog = 4096

// stop ends all waits, now and later.
func (d *door) stop() {
	_, _ = unix.Write(d.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

func (d *door) close() {
	unix.Close(d.socket)
	unix.Close(d.wake)
}

// await waits until somebody is there or the door is stopped.
func (d *door) await() {
	d.poll(-1, unix.PollFd{Fd: int32(d.wake), Events: unix.POLLIN}, unix.PollFd{Fd: int32(d.socket), Events: unix.POLLIN})
}

// gather lets visitors come, unless the door is stopped.
func (d *door) gather() {
	d.poll(int(gather.Milliseconds()), unix.PollFd{Fd: int32(d.wake), Events: unix.POLLIN})
}

// poll may return early.
func (d *door) poll(ms int, what ...unix.PollFd) { _, _ = unix.Poll(what, ms) }

// admit takes the next visitor; ok is false where nobody is there.
func (d *door) admit() (v visitor, ok bool, err error) {
	v.fd, _, err = unix.Accept4(d.socket, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	switch {
	case err == nil:
		return v, true, nil
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNABORTED):
		return v, false, nil
	default:
		return v, false, fmt.Errorf("accept a registration: %w", err)
	}
}

// said is the message of a visitor, if it has come already.
func (v visitor) said() (message []byte, came bool) { return heardAt(v.fd) }

func heardAt(fd int) (message []byte, came bool) {
	buffer := make([]byte, maxMessage+1)
	n, _, err := unix.Recvfrom(fd, buffer, unix.MSG_DONTWAIT)
	return buffer[:max(n, 0)], err == nil && n > 0
}

// tell sends a packet, if the visitor has room for it.
func (v visitor) tell(packet []byte) {
	_ = unix.Sendto(v.fd, packet, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
}

// conn makes a connection of the runtime's of the visitor, which it closes.
func (v visitor) conn() (*net.UnixConn, error) {
	file := os.NewFile(uintptr(v.fd), "visitor")
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

func (v visitor) close() { _ = unix.Close(v.fd) }
