// SPDX-License-Identifier: Apache-2.0

// Package mps keeps the control daemon of NVIDIA's Multi-Process Service running on the node, and
// reports the GPUs that the daemon serves. The daemon outlives the agent, because the end of the
// daemon would end all clients. The next agent finds the running daemon.
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

	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/internal/registry"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

const (
	// answerTime bounds the time for a command, and startTime the time for the daemon's start.
	answerTime = 5 * time.Second
	startTime  = 15 * time.Second
	// lookEvery is the interval at which the supervisor checks a running daemon.
	lookEvery = 5 * time.Second
	// unanswered is the number of successive failed commands after which the daemon counts as hung.
	unanswered = 3
	// firstPause and longestPause bound the pause before the restart of a daemon that has ended
	// soon.
	firstPause, longestPause = time.Second, time.Minute
	// wellAfter is the running time from which the end of a daemon does not count as a failed
	// start.
	wellAfter = time.Minute
)

// Dirs are directories of the host. The agent's container has each directory at the host's path.
type Dirs struct {
	// State contains the record of the running daemon.
	State string
	// Pipes is the daemon's directory, and Clients the part of Pipes that containers see. SHM is
	// the /dev/shm that daemon and clients share.
	Pipes, Clients, SHM string
	Logs                string
}

// DirsOf returns the directories that the configuration names.
func DirsOf(dirs config.Paths) Dirs {
	return Dirs{
		State:   paths.MPS(dirs.RunDir),
		Pipes:   paths.MPSPipes(dirs.RunDir),
		Clients: paths.MPSClients(dirs.RunDir),
		SHM:     paths.MPSSHM(dirs.RunDir),
		Logs:    paths.MPSLogs(dirs.StateDir),
	}
}

// Host runs the control program.
type Host interface {
	// Start starts the daemon without a parent and returns its pid.
	Start(ctx context.Context, env []string) (pid int, err error)
	// Control sends a command to the daemon and returns the daemon's answer.
	Control(ctx context.Context, env []string, command string) (string, error)
}

// Modes sets the GPUs' compute modes.
type Modes interface {
	// Set sets the mode of a GPU and returns the previous mode.
	Set(uuid string, mode int) (before int, err error)
}

// Events records Events about the daemon. OnNode must not block.
type Events interface {
	OnNode(reason events.Reason, format string, args ...any)
}

// Options configures a Supervisor.
type Options struct {
	Config config.Sharing
	Dirs   Dirs
	Host   Host
	// GPUs returns the UUIDs of the GPUs to serve, by index.
	GPUs func() []string
	// Modes, if set, sets compute modes as the configuration requests.
	Modes  Modes
	Proc   registry.Proc
	Events Events
	Log    *slog.Logger
}

// Supervisor keeps the daemon running.
type Supervisor struct {
	Options
	metrics metrics
	modes   loop.Failures // of setting a GPU's compute mode, by UUID

	mu sync.Mutex
	// daemon is the running daemon, nil if no daemon answers. If daemon is nil, reason is the
	// cause.
	daemon   *daemon
	reason   string
	reported bool   // whether an Event reported the absence of a daemon
	logged   string // the last logged reason
}

// New returns a supervisor that does nothing until Run.
func New(opts Options) *Supervisor {
	return &Supervisor{Options: opts, metrics: newMetrics(), reason: "the agent has not started the daemon yet"}
}

// Ready returns an error with the cause if the daemon does not serve all these GPUs. Ready never
// waits.
func (s *Supervisor) Ready(uuids []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.daemon != nil && s.daemon.ended() {
		s.daemon, s.reason = nil, "the daemon has just ended"
	}
	if s.daemon == nil {
		return fmt.Errorf("the MPS control daemon does not run (%s): the agent restarts the daemon, and kubelet retries; the logs in %s may contain the reason", s.reason, s.Dirs.Logs)
	}
	for _, uuid := range uuids {
		if err := s.daemon.shared[uuid]; err != nil {
			return fmt.Errorf("the compute mode of %s is not exclusive (%w): kubelet retries", uuid, err)
		}
		if !slices.Contains(s.daemon.GPUs, uuid) {
			return fmt.Errorf("the MPS control daemon does not serve %s yet, because it still has clients: delete their pods", uuid)
		}
	}
	return nil
}

// Run keeps the daemon running until ctx ends, and then does not end the daemon. If the
// configuration does not use MPS, Run ends an earlier agent's daemon once the daemon has no
// clients.
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
		loop.Sleep(ctx, pause)
		pause = min(2*pause, longestPause)
	}
}

// keep finds or starts the daemon, and returns when the daemon has ended or ctx ends.
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

// errNoGPU means that no GPU is currently shared through MPS. A GPU may appear at any time.
var errNoGPU = errors.New("the driver shows no GPU to share by MPS")

// errRenewed means that the supervisor ended the daemon, so that the next daemon serves other GPUs.
var errRenewed = errors.New("the agent restarts the daemon for other GPUs")

// leave drops a daemon that has ended, or that the next agent will find.
func (s *Supervisor) leave(d *daemon) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.daemon == d {
		s.daemon, s.reason = nil, "the agent is about to restart the daemon"
	}
	d.close()
}

// watch checks the daemon at an interval, and returns when the daemon has ended or ctx ends.
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
			if len(d.shared) > 0 {
				if err := s.setModes(d); err != nil {
					return err
				}
			}
		} else if silent++; silent == unanswered && ctx.Err() == nil {
			// The supervisor does not kill a daemon that does not answer: the daemon may still
			// serve its clients.
			s.down(fmt.Sprintf("process %d does not answer: %v", d.PID, err))
		}
	}
	return nil
}

// renew ends a daemon that lacks wanted GPUs and has no clients. The next daemon will serve the
// wanted GPUs.
func (s *Supervisor) renew(ctx context.Context, d *daemon, clients int) {
	want := s.GPUs()
	missing := slices.ContainsFunc(want, func(uuid string) bool { return !slices.Contains(d.GPUs, uuid) })
	if !missing || clients > 0 {
		return
	}
	d.renewed = true
	s.Log.Info("restarting the MPS control daemon for other GPUs", "gpus", want)
	if _, err := s.control(ctx, "quit"); err != nil {
		s.Log.Warn("failed to stop the MPS control daemon", "error", err)
	}
}

// retire ends a daemon of an earlier configuration, and restores the GPUs' compute modes.
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
			s.Log.Warn("failed to stop an MPS control daemon that is no longer needed", "error", err)
			loop.Sleep(ctx, lookEvery)
		}
	}
}

// quit ends a daemon without clients.
func (s *Supervisor) quit(ctx context.Context, d *daemon) error {
	clients, err := s.clients(ctx)
	if err != nil {
		return err
	}
	if len(clients) > 0 {
		return fmt.Errorf("the daemon has %d clients: delete their pods", len(clients))
	}
	if _, err := s.control(ctx, "quit"); err != nil {
		return err
	}
	if !d.waitEnd(answerTime) {
		return fmt.Errorf("process %d does not end", d.PID)
	}
	s.Log.Info("stopped the MPS control daemon", "pid", d.PID)
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
	if s.reported {
		s.Events.OnNode(events.MPSRecovered, "the MPS control daemon (process %d) serves %s", d.PID, strings.Join(d.GPUs, ", "))
	}
	s.reported, s.logged = false, ""
	s.Log.Info("connected to the MPS control daemon", "pid", d.PID, "gpus", d.GPUs)
}

func (s *Supervisor) down(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.daemon, s.reason = nil, reason
	s.metrics.ready.Set(0)
	s.metrics.clients.Set(0)
	if !s.reported {
		s.Events.OnNode(events.MPSUnavailable, "the MPS control daemon does not run: %s; the agent refuses pods on its GPUs until the daemon runs", reason)
	}
	if reason != s.logged {
		s.Log.Warn("failed to run the MPS control daemon", "reason", reason)
	}
	s.reported, s.logged = true, reason
}

// Cgroup is the name of the cgroup in which the daemon and its servers run.
const Cgroup = "nri-vgpu-mps"

// Own reports whether a process is the daemon or one of its servers, by the process's cgroup. No
// pod can enter the cgroup of the daemon.
func Own(p registry.Process) bool {
	return p.PodUID == "" && strings.HasSuffix(p.Cgroup, "/"+Cgroup)
}

// waitFor waits until a process ends, at most for patience, and reports whether the process has
// ended.
func waitFor(pidfd int, patience time.Duration) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, int(patience.Milliseconds()))
	return err == nil && n == 1
}
