// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// record identifies a running daemon, so that the next agent can find it.
type record struct {
	PID int `json:"pid"`
	// Started, in clock ticks since boot, distinguishes the process from a later process with the
	// same pid.
	Started uint64   `json:"started"`
	GPUs    []string `json:"gpus"`
	// Modes are the compute modes before the daemon's start, by GPU.
	Modes map[string]int `json:"modes,omitempty"`
}

// daemon is a running daemon.
type daemon struct {
	record
	pidfd int
	// renewed reports whether renew has asked the daemon to quit.
	renewed bool
	// shared are the errors of the GPUs that are not in the mode exclusive, as the configuration requests.
	// Supervisor.mu guards shared.
	shared map[string]error
}

func (d *daemon) close() { unix.Close(d.pidfd) }

func (d *daemon) waitEnd(patience time.Duration) bool { return waitFor(d.pidfd, patience) }

func (d *daemon) ended() bool { return d.waitEnd(0) }

func (s *Supervisor) readRecord() (record, error) {
	var r record
	data, err := os.ReadFile(filepath.Join(s.Dirs.State, paths.MPSRecord))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return record{}, fmt.Errorf("read the record of the MPS control daemon: %w", err)
	}
	return r, nil
}

func (s *Supervisor) writeRecord(r record) error {
	data, err := json.Marshal(r)
	if err == nil {
		err = renameio.WriteFile(filepath.Join(s.Dirs.State, paths.MPSRecord), data, 0o600, renameio.IgnoreUmask())
	}
	if err != nil {
		return fmt.Errorf("write the record of the MPS control daemon: %w", err)
	}
	return nil
}

// open returns the daemon of a record, or nil if the daemon's process has ended.
func (s *Supervisor) open(r record) *daemon {
	if r.PID == 0 {
		return nil
	}
	pidfd, err := unix.PidfdOpen(r.PID, 0)
	if err != nil {
		return nil
	}
	process, err := s.Proc.Look(r.PID)
	if err != nil || process.Started != r.Started || waitFor(pidfd, 0) {
		unix.Close(pidfd)
		return nil
	}
	return &daemon{record: r, pidfd: pidfd}
}

// find returns the daemon of the record, or nil if the daemon has ended.
func (s *Supervisor) find(ctx context.Context) (*daemon, error) {
	r, err := s.readRecord()
	if err != nil {
		return nil, err
	}
	d := s.open(r)
	if d == nil {
		return nil, nil
	}
	if _, err := s.clients(ctx); err != nil {
		d.close()
		return nil, fmt.Errorf("process %d does not answer: %w", r.PID, err)
	}
	s.Log.Info("found the MPS control daemon running", "pid", d.PID)
	return d, nil
}

// start starts a daemon and waits until the daemon answers.
func (s *Supervisor) start(ctx context.Context, gpus []string) (*daemon, error) {
	before, err := s.readRecord()
	if err != nil {
		return nil, err
	}
	for dir, mode := range map[string]os.FileMode{s.Dirs.State: 0o755, s.Dirs.Pipes: 0o755, s.Dirs.Clients: 0o755, s.Dirs.SHM: 0o777 | os.ModeSticky, s.Dirs.Logs: 0o755} {
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, mode)); err != nil {
			return nil, fmt.Errorf("make a directory for the MPS control daemon: %w", err)
		}
	}
	s.metrics.starts.Inc()
	pid, err := s.Host.Start(ctx, s.env("CUDA_VISIBLE_DEVICES="+strings.Join(gpus, ",")))
	if err != nil {
		return nil, fmt.Errorf("start the MPS control daemon: %w", err)
	}
	process, err := s.Proc.Look(pid)
	if err != nil {
		return nil, fmt.Errorf("the MPS control daemon ended as it started: %w", err)
	}
	r := record{PID: pid, Started: process.Started, GPUs: gpus, Modes: before.Modes}
	if err := s.writeRecord(r); err != nil {
		return nil, err
	}
	d := s.open(r)
	if d == nil {
		return nil, errors.New("the MPS control daemon ended as it started")
	}
	if err := s.awaitAnswer(ctx, d); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

func (s *Supervisor) awaitAnswer(ctx context.Context, d *daemon) error {
	deadline := time.Now().Add(startTime)
	for {
		_, err := s.control(ctx, "get_server_list")
		switch {
		case err == nil:
			return nil
		case d.ended():
			return errors.New("the MPS control daemon ended as it started")
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline):
			return fmt.Errorf("the MPS control daemon does not answer: %w", err)
		}
		loop.Sleep(ctx, 50*time.Millisecond)
	}
}

// env returns the environment of the control program and the daemon, with the daemon's directories.
func (s *Supervisor) env(more ...string) []string {
	return append([]string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"CUDA_MPS_PIPE_DIRECTORY=" + s.Dirs.Pipes,
		"CUDA_MPS_LOG_DIRECTORY=" + s.Dirs.Logs,
	}, more...)
}

func (s *Supervisor) control(ctx context.Context, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	answer, err := s.Host.Control(ctx, s.env(), command)
	if err != nil {
		return "", fmt.Errorf("%s: %w", command, err)
	}
	return answer, nil
}

// clients returns the processes that the daemon's servers serve.
func (s *Supervisor) clients(ctx context.Context) ([]int, error) {
	answer, err := s.control(ctx, "get_server_list")
	if err != nil {
		return nil, err
	}
	var clients []int
	for _, server := range pids(answer) {
		answer, err := s.control(ctx, "get_client_list "+strconv.Itoa(server))
		if err != nil {
			return nil, err
		}
		clients = append(clients, pids(answer)...)
	}
	return clients, nil
}

// pids parses a pid from each line, and omits other lines.
func pids(answer string) []int {
	var all []int
	for line := range strings.Lines(answer) {
		if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 0 {
			all = append(all, pid)
		}
	}
	return all
}

// exclusiveProcess is NVML's number of the mode that reserves a GPU for one process. With MPS, this
// process is the server.
const exclusiveProcess = 3

// setModes sets the compute modes if the configuration requests exclusive mode, and records the
// previous modes. Without exclusive mode, setModes restores the recorded modes. A GPU whose mode
// cannot be set does not affect the other GPUs.
func (s *Supervisor) setModes(d *daemon) error {
	if s.Config.MPS.ComputeMode != config.ModeExclusiveProcess {
		s.restoreModes()
		return nil
	}
	shared := map[string]error{}
	for _, uuid := range d.GPUs {
		before, err := s.Modes.Set(uuid, exclusiveProcess)
		if s.modes.Note(uuid, err) == loop.Failed {
			s.Log.Warn("failed to set a GPU's compute mode; retrying", "uuid", uuid, "error", err)
		}
		if err != nil {
			shared[uuid] = err
		}
		if err != nil || before == exclusiveProcess {
			continue
		}
		if d.Modes == nil {
			d.Modes = map[string]int{}
		}
		d.Modes[uuid] = before
		if err := s.writeRecord(d.record); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d.shared = shared
	return nil
}

func (s *Supervisor) restoreModes() {
	r, err := s.readRecord()
	if err != nil || len(r.Modes) == 0 {
		return
	}
	for uuid, mode := range r.Modes {
		if _, err := s.Modes.Set(uuid, mode); err != nil {
			s.Log.Warn("failed to restore a GPU's compute mode", "uuid", uuid, "mode", mode, "error", err)
			continue
		}
		delete(r.Modes, uuid)
	}
	if err := s.writeRecord(r); err != nil {
		s.Log.Warn("failed to record that the compute modes were restored", "error", err)
	}
}
