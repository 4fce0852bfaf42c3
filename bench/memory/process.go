// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
)

// process is a running fill. A process prints one line after filling, and holds its memory until
// the runner kills the process.
type process struct {
	task
	cmd    *exec.Cmd
	stderr bytes.Buffer
	ending sync.Once
	// filled is closed after fill and err are set.
	filled chan struct{}
	fill   Fill
	err    error
}

func start(ctx context.Context, t task, argv, env []string) (*process, error) {
	p := &process{task: t, cmd: exec.CommandContext(ctx, argv[0], argv[1:]...), filled: make(chan struct{})}
	p.cmd.Env = env
	p.cmd.Stderr = &p.stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.filled)
		p.fill, p.err = p.read(bufio.NewReader(out))
	}()
	return p, nil
}

// result waits until the process has filled, and returns the result.
func (p *process) result() (Fill, error) {
	<-p.filled
	return p.fill, p.err
}

// done reports whether the process has filled.
func (p *process) done() bool {
	select {
	case <-p.filled:
		return true
	default:
		return false
	}
}

func (p *process) read(out *bufio.Reader) (Fill, error) {
	line, err := out.ReadBytes('\n')
	if errors.Is(err, io.EOF) {
		p.wait()
		return p.silent(), nil
	}
	if err != nil {
		return Fill{}, fmt.Errorf("read the output of fill: %w", err)
	}
	return p.parse(line)
}

// silent returns the result of a process that ended without output, because the process crashed in
// its library or the library refused to start.
func (p *process) silent() Fill {
	message := strings.TrimSpace(p.stderr.String())
	if state := p.cmd.ProcessState; state != nil {
		message = strings.TrimSpace(state.String() + ": " + message)
	}
	return Fill{Way: p.way, Threads: p.threads, Rounds: p.rounds, Chunk: p.chunk, Error: -1, Message: message}
}

func (p *process) parse(line []byte) (Fill, error) {
	var said struct {
		Granted  uint64 `json:"granted_bytes"`
		Pieces   uint64 `json:"pieces"`
		Refused  uint64 `json:"smallest_refused_bytes"`
		Refusals uint64 `json:"refusals"`
		Outcome  string `json:"outcome"` // after the process has a context
		Error    int    `json:"error_code"`
		Call     string `json:"call"`
		Message  string `json:"message"`
	}
	if err := json.Unmarshal(line, &said); err != nil {
		return Fill{}, fmt.Errorf("read the output of fill: %w: %s", err, line)
	}
	if said.Message != "" {
		said.Error = -1
	}
	return Fill{
		Way: p.way, Threads: p.threads, Rounds: p.rounds, Chunk: p.chunk,
		Granted: said.Granted, Pieces: said.Pieces,
		Refused: said.Refused, Refusals: said.Refusals,
		Context: said.Outcome != "",
		Error:   said.Error, Call: said.Call, Message: said.Message,
	}, nil
}

// signal stops, continues or kills the process, unless it has ended.
func (p *process) signal(signal syscall.Signal) { _ = p.cmd.Process.Signal(signal) }

// end kills the process and waits until the process has ended. The end of the context that start
// received also kills the process.
func (p *process) end() {
	p.signal(syscall.SIGKILL)
	<-p.filled
	p.wait()
}

func (p *process) wait() {
	p.ending.Do(func() { _ = p.cmd.Wait() }) // the command's state contains the result
}
