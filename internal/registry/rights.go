// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// passRights sets whether packets to a socket, and to the sockets that it accepts, may carry
// descriptors. Kernels before 6.16 do not support the option and return ENOPROTOOPT.
func passRights(socket int, pass bool) error {
	value := 0
	if pass {
		value = 1
	}
	return unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, value)
}

// These constants bound the handling of descriptors in packets. Before Linux 6.16, any packet can
// carry descriptors. A close of the last descriptor of a socket can block until the socket's data
// is sent, for a time that the sender sets. A close of a file can block until its file system
// answers. Therefore receive takes the descriptors, and closers close them in the background
// without the wait of sockets. Otherwise, a close of the connection would close the descriptors
// that are still queued in the connection.
const (
	// mostRights is the number of descriptors that a packet can carry.
	mostRights = 253
	// mostClosers bounds the packets whose descriptors are being closed. If all closers hang, the
	// next packet with descriptors blocks receive.
	mostClosers = 32
)

// controlBytes is the space for all control messages of a packet.
var controlBytes = unix.CmsgSpace(unix.SizeofUcred) + unix.CmsgSpace(4*mostRights)

// closers closes the descriptors that arrive with packets.
type closers struct {
	slots chan struct{}
	close func(fd int)
}

func newClosers(closeOne func(fd int)) closers {
	return closers{make(chan struct{}, mostClosers), closeOne}
}

var rightsClosers = newClosers(func(fd int) {
	// For a file that is not a socket, the call fails without effect.
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
	_ = unix.Close(fd)
})

// receive reads the next packet that has arrived, and drops the packet's descriptors. ended reports
// that no packet is left, or an error. Packets on connections of openListener's sockets carry
// credentials, and the end of a connection does not.
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

// drop closes the descriptors in control messages, in the background.
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

// drain drops all packets of a connection before its close, and rejects later packets.
func drain(fd int) {
	_ = unix.Shutdown(fd, unix.SHUT_RD)
	for ended := false; !ended; {
		_, ended, _ = receive(fd)
	}
}

// hangUp drains and closes a connection.
func hangUp(conn *net.UnixConn) {
	if raw, err := conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { drain(int(fd)) })
	}
	conn.Close()
}
