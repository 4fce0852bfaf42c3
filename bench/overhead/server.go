// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// server is a process that makes calls on request.
type server struct {
	side string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
}

func (s *site) serve(ctx context.Context, side string) (*server, error) {
	cmd := exec.CommandContext(ctx, s.timer)
	cmd.Env = s.env[side]
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &server{side, cmd, in, bufio.NewReader(out)}, onOneProcessor(cmd.Start)
}

// onOneProcessor starts a process that stays on the last processor, as all servers do. On different
// processors, differences between the processors and their loads would appear as differences
// between sides.
func onOneProcessor(start func() error) error {
	var all, last unix.CPUSet
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return fmt.Errorf("query the allowed processors: %w", err)
	}
	for cpu, left := 0, all.Count(); left > 0; cpu++ {
		if all.IsSet(cpu) {
			last = unix.CPUSet{}
			last.Set(cpu)
			left--
		}
	}
	if err := unix.SchedSetaffinity(0, &last); err != nil {
		return fmt.Errorf("stay on one processor: %w", err)
	}
	return errors.Join(start(), unix.SchedSetaffinity(0, &all))
}

// time makes count calls and returns the time of one call in ns.
func (s *server) time(call string, count int) (float64, error) {
	if _, err := fmt.Fprintln(s.in, call, count); err != nil {
		return 0, fmt.Errorf("%s: request %s: %w", s.side, call, err)
	}
	line, err := s.out.ReadBytes('\n')
	if err != nil {
		return 0, fmt.Errorf("%s: %s: %w", s.side, call, err)
	}
	var said struct {
		Ns float64 `json:"ns"`
	}
	if err := json.Unmarshal(line, &said); err != nil || said.Ns == 0 {
		return 0, fmt.Errorf("%s: %s: %s", s.side, call, line)
	}
	return said.Ns / float64(count), nil
}

// end closes the process's standard input, and waits until the process exits.
func (s *server) end() error {
	return errors.Join(s.in.Close(), s.cmd.Wait())
}
