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

	"github.com/nri-vgpu/nri-vgpu/pkg/query"
)

// How much of the agent's time clients can take.
const (
	// acceptsPerSecond bounds the processors' time that a flood costs the
	// agent to some percent of one; who does not get through is not known by
	// its registration, or goes on by estimates of what it holds, which harms
	// nobody. A process that is not listed counts as several, because procfs
	// has to be read for it, now or later.
	acceptsPerSecond = 2000
	acceptBurst      = 2000
	unknownAccepts   = 4
	// maxWaiting bounds the connections whose message has not come, or whose
	// answer has not been taken; maxWaitingPerContainer those of one container.
	maxWaiting             = 128
	maxWaitingPerContainer = 16
	// messagePatience is how long a message may take: it is sent right after
	// the connection was made. So long may the answer take to be read.
	messagePatience = time.Second
	// questionsPerSecond bounds a container's questions.
	questionsPerSecond = 10
	questionBurst      = 20
	sweepInterval      = time.Second
	// batchInterval is the pause between batches of accepted connections: a wake-up costs
	// more than an accept, on processors that programs start on.
	batchInterval = 2 * time.Millisecond
)

var (
	// askBounds are on connections that wait for their message, or whose answer is
	// made and read.
	askBounds = bounds{maxWaiting, maxWaitingPerContainer, questionsPerSecond, questionBurst}
	// heldBounds are on questions about what a process holds. They have their own,
	// so that neither these nor registrations keep the others out. A process asks
	// four times in a second at most.
	heldBounds = bounds{256, 32, 200, 200}
)

// Answers are given to those who ask.
type Answers interface {
	// Answer is what one who asks may know; its error is for him.
	Answer(ctx context.Context, who Asker, question query.Question) (any, error)
}

// Asker is who asks, by the kernel's word.
type Asker struct {
	// Node: the node's root, who may know all. PodUID and Container are empty.
	Node bool
	// PodUID and Container are the runtime's names for where the asker runs.
	PodUID, Container string
}

// Server is the socket that containers reach.
type Server struct {
	// Path of the socket. Its directory stays the same for ever, as running
	// containers have it mounted.
	Path     string
	Registry *Registry
	Answers  Answers
	// Holdings, where set, answers what processes hold.
	Holdings Holdings
	Proc     Proc
	Log      *slog.Logger
	// Listening, where set, is called when the socket is there, and Connected for
	// each connection. They must not block.
	Listening, Connected func()

	queue   queue
	holding queue // of those who ask what they hold
	said    string
}

// Run serves until ctx ends. Trouble with the socket is logged, and tried again:
// the agent does not depend on it.
func (s *Server) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := s.Serve(ctx); err != nil && ctx.Err() == nil {
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

// Serve serves one socket, until it is lost or ctx ends.
func (s *Server) Serve(ctx context.Context) error {
	// A container's processes run as any user.
	l, err := openListener(s.Path, 0o666)
	if err != nil {
		return err
	}
	defer l.close()
	s.said = ""
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

// acceptPace returns how fast connections are accepted.
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
		case err != nil: // out of descriptors, say: whoever comes then is not known
			s.tell(err)
			pause(ctx, sweepInterval)
		default:
			l.pauseBatch()
		}
	}
}

// acceptBatch receives the connections that wait.
func (s *Server) acceptBatch(ctx context.Context, l *listener, pace *rate.Limiter) error {
	for {
		c, ok, err := l.accept()
		if err != nil || !ok {
			return err
		}
		if s.Connected != nil {
			s.Connected()
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

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// clearPath makes room for a socket where an earlier agent left one.
func clearPath(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make the directory of the agent's socket: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the last agent's socket: %w", err)
	}
	return nil
}

// sweep forgets ended processes, and looks whether the socket is still there.
func (s *Server) sweep(ctx context.Context, lost context.CancelFunc) {
	untilLost(ctx, s.Path, func() {
		s.Registry.Sweep()
		s.queue.sweep()
		s.holding.sweep()
	})
	lost()
}

// untilLost returns when ctx ends or another file than now, or none, has a path.
// It looks every sweepInterval, and calls each before.
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

// receive identifies the peer, takes a registration at once and passes any other
// connection to attend. It never waits. It reports whether the process was listed.
func (s *Server) receive(ctx context.Context, c rawConn) (listed bool) {
	who, err := s.peer(c)
	if err != nil {
		s.Registry.count(Gone)
		c.close()
		return false
	}
	raw, came := c.said()
	if came && !IsHeldQuestion(raw) && !query.IsQuestion(raw) {
		s.takeRegistration(c, who, raw)
		return who.known
	}
	conn, err := c.conn()
	if err != nil { // there is no descriptor left
		who.close()
		s.Registry.count(Busy)
		return who.known
	}
	return s.attend(ctx, conn, who, raw, came)
}

// takeRegistration stores a registration; settle reads its process later. A message that
// is none gets an error.
func (s *Server) takeRegistration(c rawConn, who caller, raw []byte) {
	defer c.close()
	claim, err := ParseMessage(raw)
	switch {
	case err != nil:
		who.close()
		s.Registry.countInvalid()
		c.send(query.Refuse(err))
	case who.known:
		s.Registry.count(Known)
		s.Registry.claim(who.PID, claim)
	default:
		s.Registry.arrive(arrival{s.Proc, who.PID, who.handle, claim})
	}
}

// attend serves a connection that asks a question, or whose message has not come. It
// reports whether the process was listed, or is now with others that had arrived.
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

// serve hears what a connection says that has a place in the queue, and answers.
func (s *Server) serve(ctx context.Context, conn *net.UnixConn, who caller, raw []byte, came bool) {
	if !came {
		raw, came = hear(conn)
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
	case !came: // it said nothing, which is as good
	case query.IsQuestion(raw):
		s.answer(ctx, conn, who.Process, raw)
	default:
		s.register(conn, &who, raw)
	}
}

// serveHeld answers a question that has a place in the queue of those who ask what
// they hold.
func (s *Server) serveHeld(ctx context.Context, conn *net.UnixConn, who caller, raw []byte) {
	defer s.holding.leave(who.Container)
	defer hangUp(conn)
	defer who.close()
	s.hold(ctx, conn, &who, raw)
}

// said is the message of a connection, if it has come already.
func said(conn *net.UnixConn) (message []byte, came bool) {
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

// hear waits for the message of a connection.
func hear(conn *net.UnixConn) (message []byte, came bool) {
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
		return said(conn) // it may have come while this process had no processor
	}
	return message, came && err == nil
}

// register takes a message for a registration. One that is none gets an error.
func (s *Server) register(conn *net.UnixConn, who *caller, raw []byte) {
	claim, err := ParseMessage(raw)
	if err != nil {
		s.Registry.countInvalid()
		send(conn, query.Refuse(err))
		return
	}
	outcome := who.register(s.Registry)
	s.Registry.count(outcome)
	if outcome == Registered || outcome == Known {
		s.Registry.claim(who.PID, claim)
	}
}

// answer answers a question of a container about its own pod.
func (s *Server) answer(ctx context.Context, conn *net.UnixConn, from Process, raw []byte) {
	question, err := query.ParseQuestion(raw)
	switch {
	case err != nil:
		s.Registry.countInvalid()
	case s.Answers == nil, from.Container == "":
		err = errors.New("only containers of pods are answered here; on the node root asks at another socket")
	case !s.queue.mayAsk(from.Container, askBounds):
		err = fmt.Errorf("too many questions: a container may ask %d in a second", questionsPerSecond)
	}
	if err != nil {
		send(conn, query.Refuse(err))
		return
	}
	reply(ctx, conn, s.Answers, Asker{PodUID: from.PodUID, Container: from.Container}, question)
}

// reply returns the answer, or says why there is none.
func reply(ctx context.Context, conn *net.UnixConn, answers Answers, who Asker, question query.Question) {
	answer, err := answers.Answer(ctx, who, question)
	var packets [][]byte
	if err == nil {
		packets, err = query.Answer(answer)
	}
	if err != nil {
		packets = [][]byte{query.Refuse(err)}
	}
	send(conn, packets...)
}

// send writes an answer. Who does not read it in time does not get it.
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
	known  bool   // it is listed
	handle Handle // while it is not
}

// register enters the caller.
func (c *caller) register(r *Registry) Outcome {
	if c.known {
		return Known
	}
	c.known = true // the registry has the handle now
	return r.add(c.Process, c.handle, nil)
}

func (c *caller) close() {
	if !c.known {
		c.handle.Close()
	}
}

// peer identifies the process that connected, by SO_PEERCRED and a pidfd. For a process
// that is not listed it returns only the pid and the pidfd. Before Linux 6.5 the pidfd is
// that of the process that has the pid now: a live process of the container that it is
// listed in, even if it is not the one that connected.
func (s *Server) peer(c rawConn) (caller, error) {
	credentials, err := unix.GetsockoptUcred(c.fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return caller{}, fmt.Errorf("%w: %w", ErrGone, err)
	}
	pid := int(credentials.Pid)
	if pid <= 0 {
		return caller{}, ErrGone // of a pid namespace that is not ours
	}
	if known, ok := s.Registry.known(pid); ok {
		return caller{Process: known, known: true}, nil
	}
	handle, err := pidfdOf(c.fd, pid)
	return caller{Process: Process{PID: pid}, handle: handle}, err
}

// look reads a caller that is not listed from procfs, with all others that have arrived if
// it is one of them. On failure it closes the handle.
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
