// Package mps keeps the control daemon of NVIDIA's Multi-Process Service running
// on the node, and tells which GPUs it serves. The daemon is the node's, not the
// agent's: it outlives the agent, whose successor finds it again, as its end is
// the end of all its clients.
package mps

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/events"
	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
	"github.com/nri-vgpu/nri-vgpu/pkg/registry"
)

const (
	// answerTime bounds a command, and startTime the daemon's start.
	answerTime = 5 * time.Second
	startTime  = 15 * time.Second
	// lookEvery is how often a running daemon is asked.
	lookEvery = 5 * time.Second
	// unanswered commands in a row: the daemon hangs.
	unanswered = 3
	// The pause before the next start of a daemon that has ended soon.
	firstPause, longestPause = time.Second, time.Minute
	// wellAfter is how long a daemon runs until its end is no failed start.
	wellAfter = time.Minute
)

// Dirs are the host's directories, which the agent has under the same names.
type Dirs struct {
	// State holds the record of the daemon that was started.
	State string
	// Pipes is the daemon's own, Clients what containers have of it, SHM their
	// common /dev/shm.
	Pipes, Clients, SHM string
	Logs                string
}

// DirsOf are the directories by the configuration.
func DirsOf(paths config.Paths) Dirs {
	return Dirs{
		State:   layout.MPS(paths.RunDir),
		Pipes:   layout.MPSPipes(paths.RunDir),
		Clients: layout.MPSClients(paths.RunDir),
		SHM:     layout.MPSSHM(paths.RunDir),
		Logs:    layout.MPSLogs(paths.StateDir),
	}
}

// Host runs the control program.
type Host interface {
	// Start starts the daemon, which then is nobody's child, and gives its pid.
	Start(ctx context.Context, env []string) (pid int, err error)
	// Control has the daemon carry out a command and gives its answer.
	Control(ctx context.Context, env []string, command string) (string, error)
}

// Modes are the GPUs' compute modes.
type Modes interface {
	// Set sets the mode of a GPU and gives the one before.
	Set(uuid string, mode int) (before int, err error)
}

// Events tell people what became of the daemon. OnNode must not block.
type Events interface {
	OnNode(reason events.Reason, format string, args ...any)
}

// Options of a Supervisor.
type Options struct {
	Config config.Sharing
	Dirs   Dirs
	Host   Host
	// GPUs gives the UUIDs of those that are to be served, by index.
	GPUs func() []string
	// Modes, where set, are changed as the configuration says.
	Modes  Modes
	Proc   registry.Proc
	Events Events
	Log    *slog.Logger
}

// Supervisor keeps the daemon running.
type Supervisor struct {
	Options
	metrics metrics

	mu sync.Mutex
	// daemon is the one that runs, nil if there is none that answers; reason says
	// why.
	daemon *daemon
	reason string
	told   bool   // that there is none
	said   string // why, when it was last logged
}

// New gives a supervisor that does nothing until Run.
func New(opts Options) *Supervisor {
	return &Supervisor{Options: opts, metrics: newMetrics(), reason: "it has not been started yet"}
}

// Ready gives an error that says why GPUs are not served now. It never waits.
func (s *Supervisor) Ready(uuids []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.daemon != nil && s.daemon.ended() {
		s.daemon, s.reason = nil, "it has just ended"
	}
	if s.daemon == nil {
		return fmt.Errorf("the MPS control daemon does not run (%s): it is started again, and kubelet tries again; the reason may stand in %s", s.reason, s.Dirs.Logs)
	}
	for _, uuid := range uuids {
		if !slices.Contains(s.daemon.GPUs, uuid) {
			return fmt.Errorf("the MPS control daemon does not serve %s yet: it goes on for the clients that it has; delete their pods", uuid)
		}
	}
	return nil
}

// Run keeps the daemon running until ctx ends, and leaves it running then. Where
// the configuration wants none, it ends one that an earlier agent has left, once
// that has no clients.
func (s *Supervisor) Run(ctx context.Context) {
	if s.Config.Method != config.ShareByMPS {
		s.retire(ctx)
		return
	}
	for pause := firstPause; ctx.Err() == nil; {
		began := time.Now()
		err := s.keep(ctx)
		if err != nil && !errors.Is(err, errRenewed) && ctx.Err() == nil {
			s.down(err.Error())
		}
		if time.Since(began) > wellAfter || errors.Is(err, errNoGPU) {
			pause = firstPause
		}
		sleep(ctx, pause)
		pause = min(2*pause, longestPause)
	}
}

// keep finds the daemon or starts it, and returns when it has ended.
func (s *Supervisor) keep(ctx context.Context) error {
	d, err := s.find(ctx)
	if err != nil {
		return err
	}
	if d == nil {
		gpus := s.GPUs()
		if len(gpus) == 0 {
			return errNoGPU
		}
		if d, err = s.start(ctx, gpus); err != nil {
			return err
		}
	}
	defer s.leave(d)
	if err := s.setModes(d); err != nil {
		return err
	}
	if err := publish(s.Dirs); err != nil {
		return err
	}
	s.up(d)
	return s.watch(ctx, d)
}

// errNoGPU: it may come at any time.
var errNoGPU = errors.New("the driver shows no GPU that is to be shared so")

// errRenewed: the daemon was ended for the next to serve other GPUs.
var errRenewed = errors.New("it is restarted for other GPUs")

// leave forgets a daemon that has ended, or that the next agent will find.
func (s *Supervisor) leave(d *daemon) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.daemon == d {
		s.daemon, s.reason = nil, "it is about to be restarted"
	}
	d.close()
}

// watch asks the daemon from time to time, and returns when it has ended.
func (s *Supervisor) watch(ctx context.Context, d *daemon) error {
	next, silent := time.Now().Add(lookEvery), 0
	for ctx.Err() == nil {
		if d.waitEnd(500 * time.Millisecond) {
			if d.renewed {
				return errRenewed
			}
			return fmt.Errorf("process %d has ended", d.PID)
		}
		if time.Now().Before(next) {
			continue
		}
		next = time.Now().Add(lookEvery)
		clients, err := s.clients(ctx)
		if err == nil {
			silent = 0
			s.up(d)
			s.metrics.clients.Set(float64(len(clients)))
			s.renew(ctx, d, len(clients))
		} else if silent++; silent == unanswered && ctx.Err() == nil {
			// It may go on serving the clients that it has: it is not killed.
			s.down(fmt.Sprintf("process %d does not answer: %v", d.PID, err))
		}
	}
	return nil
}

// renew ends a daemon that serves other GPUs than it should, once nobody is
// disturbed: the next one will serve them.
func (s *Supervisor) renew(ctx context.Context, d *daemon, clients int) {
	want := s.GPUs()
	missing := slices.ContainsFunc(want, func(uuid string) bool { return !slices.Contains(d.GPUs, uuid) })
	if !missing || clients > 0 {
		return
	}
	d.renewed = true
	s.Log.Info("restarting the MPS control daemon for other GPUs", "gpus", want)
	if _, err := s.control(ctx, "quit"); err != nil {
		s.Log.Warn("the MPS control daemon does not quit", "error", err)
	}
}

// retire ends the daemon that another configuration wanted, and gives the GPUs
// their compute modes back.
func (s *Supervisor) retire(ctx context.Context) {
	for ctx.Err() == nil {
		d, err := s.find(ctx)
		if err == nil && d == nil {
			s.restoreModes()
			return
		}
		if err == nil {
			err = s.quit(ctx, d)
			d.close()
		}
		if err != nil {
			s.Log.Warn("an MPS control daemon that is no longer wanted goes on", "error", err)
		}
		sleep(ctx, lookEvery)
	}
}

// quit ends a daemon without clients.
func (s *Supervisor) quit(ctx context.Context, d *daemon) error {
	clients, err := s.clients(ctx)
	if err != nil {
		return err
	}
	if len(clients) > 0 {
		return fmt.Errorf("it has %d clients: delete their pods", len(clients))
	}
	if _, err := s.control(ctx, "quit"); err != nil {
		return err
	}
	if !d.waitEnd(answerTime) {
		return fmt.Errorf("process %d does not end", d.PID)
	}
	s.Log.Info("ended the MPS control daemon", "pid", d.PID)
	return nil
}

func (s *Supervisor) up(d *daemon) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.daemon == d {
		return
	}
	s.daemon = d
	s.metrics.ready.Set(1)
	if s.told {
		s.Events.OnNode(events.MPSRecovered, "the MPS control daemon (process %d) serves %s", d.PID, strings.Join(d.GPUs, ", "))
	}
	s.told, s.said = false, ""
	s.Log.Info("the MPS control daemon is ready", "pid", d.PID, "gpus", d.GPUs)
}

func (s *Supervisor) down(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.daemon, s.reason = nil, reason
	s.metrics.ready.Set(0)
	s.metrics.clients.Set(0)
	if !s.told {
		s.Events.OnNode(events.MPSUnavailable, "the MPS control daemon does not run: %s; pods on its GPUs are refused until it does", reason)
	}
	if reason != s.said {
		s.Log.Warn("the MPS control daemon does not run", "reason", reason)
	}
	s.told, s.said = true, reason
}

// Cgroup is the name of the cgroup that the daemon and its servers run in.
const Cgroup = "nri-vgpu-mps"

// Own tells whether a process is the daemon or one of its servers, by the place
// that the daemon was put in, which no pod can get to.
func Own(p registry.Process) bool {
	return p.PodUID == "" && strings.HasSuffix(p.Cgroup, "/"+Cgroup)
}

// waitFor waits until a process ends; it is over at once for one that has.
func waitFor(pidfd int, patience time.Duration) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, int(patience.Milliseconds()))
	return err == nil && n == 1
}

func sleep(ctx context.Context, duration time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(duration):
	}
}
