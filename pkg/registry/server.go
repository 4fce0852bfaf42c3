package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

// How much of the agent's time clients can take.
const (
	// acceptsPerSecond bounds the processors' time that a flood costs the
	// agent to some percent of one; who does not get through is not known by
	// its registration, which harms nobody.
	acceptsPerSecond = 500
	acceptBurst      = 500
	// maxWaiting bounds the connections whose message has not come.
	maxWaiting = 128
	// messagePatience is how long a message may take: it is sent right after
	// the connection was made.
	messagePatience = time.Second
	sweepInterval   = time.Second
)

// Server is the socket that containers reach.
type Server struct {
	// Path of the socket. Its directory stays the same for ever, as running
	// containers have it mounted.
	Path     string
	Registry *Registry
	Proc     Proc
	Log      *slog.Logger

	waiting chan struct{}
	said    string
}

// Run serves until ctx ends. Trouble with the socket is logged, and tried again:
// the agent does not depend on it.
func (s *Server) Run(ctx context.Context) {
	s.waiting = make(chan struct{}, maxWaiting)
	for ctx.Err() == nil {
		if err := s.session(ctx); err != nil && ctx.Err() == nil {
			s.tell(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(sweepInterval):
		}
	}
}

// tell logs the same trouble once.
func (s *Server) tell(err error) {
	if err.Error() != s.said {
		s.said = err.Error()
		s.Log.Error("processes of containers cannot register; their limits hold nevertheless", "error", err)
	}
}

// session serves one socket, until it is lost.
func (s *Server) session(ctx context.Context) error {
	listener, err := s.listen()
	if err != nil {
		return err
	}
	s.said = ""
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	all.Go(func() {
		<-ctx.Done()
		listener.Close()
	})
	all.Go(func() { s.sweep(ctx, cancel) })
	pace := rate.NewLimiter(acceptsPerSecond, acceptBurst)
	for {
		if err := pace.Wait(ctx); err != nil {
			return errors.New("the socket was removed")
		}
		conn, err := listener.AcceptUnix()
		switch {
		case err == nil:
			s.receive(conn)
		case ctx.Err() != nil:
			return errors.New("the socket was removed")
		default: // out of descriptors, say: whoever comes then is not known
			s.tell(fmt.Errorf("accept a registration: %w", err))
			pause(ctx, sweepInterval)
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// listen makes the socket, in place of the one that an earlier agent left.
func (s *Server) listen() (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(s.Path), 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of the agent's socket: %w", err)
	}
	if err := os.Remove(s.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the last agent's socket: %w", err)
	}
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: s.Path, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("make the agent's socket: %w", err)
	}
	// Another agent's socket may stand there when this one is closed.
	listener.SetUnlinkOnClose(false)
	// A container's processes run as any user.
	if err := os.Chmod(s.Path, 0o666); err != nil {
		listener.Close()
		return nil, fmt.Errorf("make the agent's socket accessible: %w", err)
	}
	return listener, nil
}

// sweep forgets ended processes, and looks whether the socket is still there.
func (s *Server) sweep(ctx context.Context, lost context.CancelFunc) {
	made, err := os.Lstat(s.Path)
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	for err == nil {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		s.Registry.Sweep()
		var now os.FileInfo
		if now, err = os.Lstat(s.Path); err == nil && !os.SameFile(made, now) {
			break
		}
	}
	lost()
}

// receive looks at who connected, and listens for what it says. It does not
// wait: neither for the message, nor where too many wait already.
func (s *Server) receive(conn *net.UnixConn) {
	pid, outcome := s.identify(conn)
	s.Registry.count(outcome)
	if outcome != Registered && outcome != Known {
		conn.Close()
		return
	}
	select {
	case s.waiting <- struct{}{}:
		go func() {
			defer func() { <-s.waiting }()
			defer conn.Close()
			s.hear(conn, pid)
		}()
	default:
		conn.Close()
	}
}

func (s *Server) hear(conn *net.UnixConn, pid int) {
	var raw [maxMessage + 1]byte
	_ = conn.SetReadDeadline(time.Now().Add(messagePatience))
	n, err := conn.Read(raw[:])
	if err != nil {
		return // it said nothing, which is as good
	}
	said, err := ParseMessage(raw[:n])
	if err != nil {
		s.Registry.countInvalid()
		return
	}
	s.Registry.claim(pid, said)
}

// identify asks the kernel who connected.
func (s *Server) identify(conn *net.UnixConn) (pid int, outcome Outcome) {
	pid, handle, err := peer(conn, s.Registry.knows)
	switch {
	case errors.Is(err, errKnown):
		return pid, Known
	case err != nil:
		return 0, Gone
	}
	process, handle, err := s.Proc.pinned(pid, handle)
	if err != nil {
		return 0, Gone
	}
	return pid, s.Registry.add(process, handle)
}

var errKnown = errors.New("the process is known")

// peer gives the process that made the connection, whose pid may be another's
// by now. From Linux 6.5 on the kernel gives the very process. Before, it is
// the one that has the pid now: a live process of the container that it is
// listed in, even if it is not the one that connected.
func peer(conn *net.UnixConn, known func(pid int) bool) (pid int, handle Handle, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, Handle{}, err
	}
	var inner error
	err = raw.Control(func(fd uintptr) {
		var credentials *unix.Ucred
		if credentials, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); inner != nil {
			return
		}
		pid = int(credentials.Pid)
		switch {
		case pid <= 0:
			inner = ErrGone // of a pid namespace that is not ours
		case known(pid):
			inner = errKnown
		default:
			handle, inner = pidfdOf(int(fd), pid)
		}
	})
	if err != nil {
		return 0, Handle{}, err
	}
	return pid, handle, inner
}

func pidfdOf(socket, pid int) (Handle, error) {
	fd, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if errors.Is(err, syscall.ENOPROTOOPT) {
		fd, err = unix.PidfdOpen(pid, 0)
	}
	if err != nil {
		return Handle{}, fmt.Errorf("%w: %w", ErrGone, err)
	}
	return Handle{fd}, nil
}
