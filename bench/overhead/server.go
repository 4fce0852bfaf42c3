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
)

// server is a process that makes calls when it is told to.
type server struct {
	side string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
}

func (b *bench) serve(ctx context.Context, side string) (*server, error) {
	cmd := exec.CommandContext(ctx, b.program)
	cmd.Env = b.env[side]
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &server{side, cmd, in, bufio.NewReader(out)}, cmd.Start()
}

// time makes so many calls and returns the ns that each took.
func (s *server) time(call string, count int) (float64, error) {
	if _, err := fmt.Fprintln(s.in, call, count); err != nil {
		return 0, fmt.Errorf("%s: ask for %s: %w", s.side, call, err)
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

// end lets the process end by itself.
func (s *server) end() error {
	return errors.Join(s.in.Close(), s.cmd.Wait())
}
