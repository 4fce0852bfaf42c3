// SPDX-License-Identifier: Apache-2.0

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

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/loop"
)

// These constants bound the agent's time that clients can take.
const (
	// acceptsPerSecond limits a flood to some percent of one processor's time. A process whose
	// connection is not accepted stays unregistered, or continues with estimates of the memory that
	// it holds. Neither consequence breaks a limit. The connection of an unlisted process counts as
	// unknownAccepts connections, because the agent has to read procfs for the process, now or
	// later.
	acceptsPerSecond = 2000
	acceptBurst      = 2000
	unknownAccepts   = 4
	// maxWaiting bounds the connections that wait for their message, or whose client has not read
	// its answer. maxWaitingPerContainer bounds these connections of one container.
	maxWaiting             = 128
	maxWaitingPerContainer = 16
	// messagePatience bounds the time to the arrival of a message, which clients send right after
	// they connect. messagePatience also bounds the time to read the answer.
	messagePatience = time.Second
	// questionsPerSecond bounds a container's questions.
	questionsPerSecond = 10
	questionBurst      = 20
	sweepInterval      = time.Second
	// batchInterval is the pause between batches of accepted connections. A wake-up costs more than
	// an accept, on processors on which programs start.
	batchInterval = 2 * time.Millisecond
)

var (
	// askBounds bounds the connections that wait for their message, or whose answer is in progress.
	askBounds = bounds{maxWaiting, maxWaitingPerContainer, questionsPerSecond, questionBurst}
	// heldBounds bounds the questions about the memory that a process holds. With separate bounds,
	// these questions and other connections do not block each other. A process asks at most four
	// times in a second.
	heldBounds = bounds{256, 32, 200, 200}
)

// Answers answers the questions of programs.
type Answers interface {
	// Answer returns the data that the asker may see. The server sends an error to the asker.
	Answer(ctx context.Context, who Asker, question agentapi.Question) (any, error)
}

// Asker identifies the asker, as the kernel reports it.
type Asker struct {
	// Node reports whether the asker is the node's root, who may see everything. If Node is true,
	// PodUID and Container are empty.
	Node bool
	// PodUID and Container are the runtime's names of the asker's pod and container.
	PodUID, Container string
}

// Server serves the socket that containers reach.
type Server struct {
	// Path is the path of the socket. The socket's directory never changes, because running
	// containers have mounted the directory.
	Path     string
	Registry *Registry
	Answers  Answers
	// Holdings, if set, returns the memory that processes hold.
	Holdings Holdings
	Proc     Proc
	Log      *slog.Logger
	// Listening, if set, is called when the socket exists. Listening must not block.
	Listening func()

	queue   queue
	holding queue // of questions about the memory that a process holds
	failure loop.Failure
}

// Run serves until ctx ends. Run logs failures of the socket and retries, because the agent does
// not depend on the socket.
func (s *Server) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := s.Serve(ctx); err != nil && ctx.Err() == nil {
			s.logOnce(err)
		}
		loop.Sleep(ctx, sweepInterval)
	}
}

// logOnce logs a repeated failure once.
func (s *Server) logOnce(err error) {
	if s.failure.Note(err) == loop.Failed {
		s.Log.Error("failed to open the registration socket; limits still hold", "error", err)
	}
}

// Serve serves one socket until the socket is lost or ctx ends.
func (s *Server) Serve(ctx context.Context) error {
	// Processes of containers run as any user.
	l, err := openListener(s.Path, 0o666)
	if err != nil {
		return err
	}
	defer l.close()
	s.failure = loop.Failure{}
	if s.Listening != nil {
		s.Listening()
	}
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	all.Go(func() {
		<-ctx.Done()
		l.stop()
	})
	all.Go(func() { s.sweep(ctx, cancel) })
	return s.acceptLoop(ctx, l)
}

// acceptPace returns the rate limiter of accepted connections.
func acceptPace() *rate.Limiter { return rate.NewLimiter(acceptsPerSecond, acceptBurst) }

// acceptLoop accepts connections, in batches, until the socket is lost or ctx ends.
func (s *Server) acceptLoop(ctx context.Context, l *listener) error {
	pace := acceptPace()
	for {
		l.wait()
		err := s.acceptBatch(ctx, l, pace)
		switch {
		case ctx.Err() != nil:
			return errors.New("the socket was removed")
		case err != nil: // for example, no descriptor is free; further processes stay unregistered
			s.logOnce(err)
			loop.Sleep(ctx, sweepInterval)
		default:
			l.pauseBatch()
		}
	}
}

// acceptBatch accepts and receives all connections that wait.
func (s *Server) acceptBatch(ctx context.Context, l *listener, pace *rate.Limiter) error {
	for {
		c, ok, err := l.accept()
		if err != nil || !ok {
			return err
		}
		cost := 1
		if !s.receive(ctx, c) {
			cost = unknownAccepts
		}
		if err := pace.WaitN(ctx, cost); err != nil {
			return err
		}
	}
}

// clearPath removes an earlier agent's socket and creates the socket's directory.
func clearPath(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make the directory of the agent's socket: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the previous agent's socket: %w", err)
	}
	return nil
}

// sweep drops ended processes, and checks that the socket still exists.
func (s *Server) sweep(ctx context.Context, lost context.CancelFunc) {
	untilLost(ctx, s.Path, func() {
		s.Registry.Sweep()
		s.queue.sweep()
		s.holding.sweep()
	})
	lost()
}

// untilLost waits until ctx ends, or until another program replaces or removes the path's file.
// untilLost checks every sweepInterval, and calls each before the check.
func untilLost(ctx context.Context, path string, each func()) {
	made, err := os.Lstat(path)
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	for err == nil {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		each()
		var now os.FileInfo
		if now, err = os.Lstat(path); err == nil && !os.SameFile(made, now) {
			return
		}
	}
}

// receive identifies the peer, takes a registration at once, and passes any other connection to
// attend. receive never waits. receive reports whether the peer was listed.
func (s *Server) receive(ctx context.Context, c rawConn) (listed bool) {
	who, err := s.peer(c)
	if err != nil {
		s.Registry.count(Gone)
		c.close()
		return false
	}
	raw, came := c.arrived()
	if came && !IsHeldQuestion(raw) && !agentapi.IsQuestion(raw) {
		s.takeRegistration(c, who, raw)
		return who.known
	}
	conn, err := c.conn()
	if err != nil { // no descriptor is free
		who.close()
		s.Registry.count(Busy)
		return who.known
	}
	return s.attend(ctx, conn, who, raw, came)
}

// takeRegistration stores a registration, and settle reads the registration's process later.
// takeRegistration answers a malformed message with an error.
func (s *Server) takeRegistration(c rawConn, who caller, raw []byte) {
	defer c.close()
	claim, err := ParseMessage(raw)
	switch {
	case err != nil:
		who.close()
		s.Registry.countInvalid()
		c.send(agentapi.Refuse(err))
	case who.known:
		s.Registry.count(Known)
		s.Registry.claim(who.PID, claim)
	default:
		s.Registry.arrive(arrival{s.Proc, who.PID, who.handle, claim})
	}
}

// attend serves a connection that asks a question, or whose message has not arrived. attend reports
// whether the process was listed before, or is listed now because attend settled arrivals.
func (s *Server) attend(ctx context.Context, conn *net.UnixConn, who caller, raw []byte, came bool) (listed bool) {
	if err := s.look(&who); err != nil {
		s.Registry.count(Gone)
		hangUp(conn)
		return false
	}
	switch {
	case came && IsHeldQuestion(raw):
		if s.mayHold(who.Container) {
			go s.serveHeld(ctx, conn, who, raw)
			return who.known
		}
	case s.queue.enter(who.Container, askBounds):
		go s.serve(ctx, conn, who, raw, came)
		return who.known
	default:
		s.Registry.count(Busy)
	}
	who.close()
	hangUp(conn)
	return who.known
}

// serve reads and answers the message of a connection that has a place in the queue.
func (s *Server) serve(ctx context.Context, conn *net.UnixConn, who caller, raw []byte, came bool) {
	if !came {
		raw, came = awaitMessage(conn)
	}
	if came && IsHeldQuestion(raw) {
		s.queue.leave(who.Container)
		if s.mayHold(who.Container) {
			s.serveHeld(ctx, conn, who, raw)
			return
		}
		who.close()
		hangUp(conn)
		return
	}
	defer s.queue.leave(who.Container)
	defer hangUp(conn)
	defer who.close()
	switch {
	case !came: // no message, which is allowed
	case agentapi.IsQuestion(raw):
		s.answer(ctx, conn, who.Process, raw)
	default:
		s.register(conn, &who, raw)
	}
}

// serveHeld answers a question about held memory that has a place in the queue.
func (s *Server) serveHeld(ctx context.Context, conn *net.UnixConn, who caller, raw []byte) {
	defer s.holding.leave(who.Container)
	defer hangUp(conn)
	defer who.close()
	s.hold(ctx, conn, &who, raw)
}

// arrived returns the message of a connection, if the message has already arrived.
func arrived(conn *net.UnixConn) (message []byte, came bool) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, false
	}
	err = raw.Read(func(fd uintptr) bool {
		message, came = receiveNow(int(fd))
		return true
	})
	return message, came && err == nil
}

// awaitMessage waits for the message of a connection and returns the message.
func awaitMessage(conn *net.UnixConn) (message []byte, came bool) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, false
	}
	_ = conn.SetReadDeadline(time.Now().Add(messagePatience))
	err = raw.Read(func(fd uintptr) bool {
		var received error
		message, _, received = receive(int(fd))
		came = received == nil && len(message) > 0
		return !errors.Is(received, unix.EAGAIN)
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		_ = conn.SetReadDeadline(time.Time{})
		return arrived(conn) // the message may have arrived while this process did not run
	}
	return message, came && err == nil
}

// register handles a message as a registration, and answers a malformed message with an error.
func (s *Server) register(conn *net.UnixConn, who *caller, raw []byte) {
	claim, err := ParseMessage(raw)
	if err != nil {
		s.Registry.countInvalid()
		send(conn, agentapi.Refuse(err))
		return
	}
	outcome := who.register(s.Registry)
	s.Registry.count(outcome)
	if outcome == Registered || outcome == Known {
		s.Registry.claim(who.PID, claim)
	}
}

// answer answers a container's question about its own pod.
func (s *Server) answer(ctx context.Context, conn *net.UnixConn, from Process, raw []byte) {
	question, err := agentapi.ParseQuestion(raw)
	switch {
	case err != nil:
		s.Registry.countInvalid()
	case s.Answers == nil, from.Container == "":
		err = errors.New("the agent answers only containers of pods at this socket; root on the node uses another socket")
	case !s.queue.mayAsk(from.Container, askBounds):
		err = fmt.Errorf("too many queries: the limit of a container is %d per second", questionsPerSecond)
	}
	if err != nil {
		send(conn, agentapi.Refuse(err))
		return
	}
	reply(ctx, conn, s.Answers, Asker{PodUID: from.PodUID, Container: from.Container}, question)
}

// reply sends the answer, or an error with the cause.
func reply(ctx context.Context, conn *net.UnixConn, answers Answers, who Asker, question agentapi.Question) {
	answer, err := answers.Answer(ctx, who, question)
	var packets [][]byte
	if err == nil {
		packets, err = agentapi.Answer(answer)
	}
	if err != nil {
		packets = [][]byte{agentapi.Refuse(err)}
	}
	send(conn, packets...)
}

// send writes an answer. A client that does not read in time does not get the answer.
func send(conn *net.UnixConn, packets ...[]byte) {
	_ = conn.SetWriteDeadline(time.Now().Add(messagePatience))
	for _, packet := range packets {
		if _, err := conn.Write(packet); err != nil {
			return
		}
	}
}

// caller is the process that made a connection.
type caller struct {
	Process
	known  bool   // whether the process is listed
	handle Handle // set while the process is not listed
}

// register lists the caller.
func (c *caller) register(r *Registry) Outcome {
	if c.known {
		return Known
	}
	c.known = true // the registry now owns the handle
	return r.add(c.Process, c.handle, nil)
}

func (c *caller) close() {
	if !c.known {
		c.handle.Close()
	}
}

// peer identifies the process that connected, by SO_PEERCRED and a pidfd. For an unlisted process,
// peer returns only the pid and the pidfd. Before Linux 6.5, the pidfd refers to the process that
// has the pid now, even if another process connected. The server then lists a live process in that
// process's own container.
func (s *Server) peer(c rawConn) (caller, error) {
	credentials, err := unix.GetsockoptUcred(c.fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return caller{}, fmt.Errorf("%w: %w", ErrGone, err)
	}
	pid := int(credentials.Pid)
	if pid <= 0 {
		return caller{}, ErrGone // the peer is in a pid namespace outside the agent's
	}
	if known, ok := s.Registry.known(pid); ok {
		return caller{Process: known, known: true}, nil
	}
	handle, err := pidfdOf(c.fd, pid)
	return caller{Process: Process{PID: pid}, handle: handle}, err
}

// look reads an unlisted caller from procfs. If the caller is among the arrivals, look settles all
// arrivals. On failure, look closes the handle.
func (s *Server) look(c *caller) (err error) {
	if c.known {
		return nil
	}
	if known, ok := s.Registry.settled(c.PID); ok {
		c.handle.Close()
		*c = caller{Process: known, known: true}
		return nil
	}
	c.Process, c.handle, err = s.Proc.pinned(c.PID, c.handle)
	return err
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
