package registry

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// passRights sets whether packets to a socket, and to those that it accepts, may carry
// descriptors. The kernel knows the option from 6.16 on: before, it is ENOPROTOOPT.
func passRights(socket int, pass bool) error {
	value := 0
	if pass {
		value = 1
	}
	return unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, value)
}

// Before Linux 6.16 any packet can carry descriptors. Whoever drops the last one of a
// socket waits for what the socket still has to send, as long as its owner has set, and
// closing a file may wait for its file system. So descriptors are received, sockets told
// not to wait, and all are closed aside. Those that lie in a connection when it is closed
// would be dropped by that.
const (
	// mostRights is how many descriptors a packet can carry.
	mostRights = 253
	// mostClosers is how many packets' descriptors are closed at a time. If all hang,
	// the next packet with descriptors is waited for.
	mostClosers = 32
)

// controlBytes has room for all that comes with a packet.
var controlBytes = unix.CmsgSpace(unix.SizeofUcred) + unix.CmsgSpace(4*mostRights)

// closers close descriptors that came with packets.
type closers struct {
	slots chan struct{}
	close func(fd int)
}

func newClosers(closeOne func(fd int)) closers {
	return closers{make(chan struct{}, mostClosers), closeOne}
}

var rightsClosers = newClosers(func(fd int) {
	// What is no socket does not linger.
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
	_ = unix.Close(fd)
})

// receive reads the next packet that has come and drops its descriptors. ended reports that
// none has come, or will: packets of connections that openListener's sockets accepted come
// with credentials, and an end without.
func receive(fd int) (packet []byte, ended bool, err error) {
	buffer, control := make([]byte, maxMessage+1), make([]byte, controlBytes)
	for {
		n, controls, _, _, err := unix.Recvmsg(fd, buffer, control, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, true, err
		}
		rightsClosers.drop(control[:controls])
		return buffer[:n], n == 0 && controls == 0, nil
	}
}

// drop closes the descriptors in control messages.
func (c closers) drop(control []byte) {
	var all []int
	messages, _ := unix.ParseSocketControlMessage(control)
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err == nil {
			all = append(all, fds...)
		}
	}
	if len(all) == 0 {
		return
	}
	c.slots <- struct{}{}
	go func() {
		defer func() { <-c.slots }()
		for _, fd := range all {
			c.close(fd)
		}
	}()
}

// drain drops all packets of a connection that is about to be closed, and lets no more come.
func drain(fd int) {
	_ = unix.Shutdown(fd, unix.SHUT_RD)
	for ended := false; !ended; {
		_, ended, _ = receive(fd)
	}
}

// hangUp closes a connection.
func hangUp(conn *net.UnixConn) {
	if raw, err := conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { drain(int(fd)) })
	}
	conn.Close()
}
