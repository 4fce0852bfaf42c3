// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// program is a process that the benchmark starts, kills and starts again.
type program struct {
	name, path string
	args, env  []string

	process *exec.Cmd
	output  *lockedBuffer
}

func (p *program) start(ctx context.Context) error {
	p.output = &lockedBuffer{}
	p.process = exec.CommandContext(ctx, p.path, p.args...)
	p.process.Env = append(os.Environ(), p.env...)
	p.process.Stdout, p.process.Stderr = p.output, p.output
	if err := p.process.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	return nil
}

func (p *program) log() []byte { return p.output.bytes() }

// stop kills the process. stop returns an error if the process has already ended.
func (p *program) stop() error {
	killErr := p.process.Process.Kill()
	_ = p.process.Wait() // the signal ends the process with an error
	if status, ok := p.process.ProcessState.Sys().(syscall.WaitStatus); killErr != nil || !ok || status.Signal() != syscall.SIGKILL {
		return fmt.Errorf("stop %s: the program has ended already (%v); its log ends with: %s", p.name, p.process.ProcessState, lastLines(string(p.log()), 20))
	}
	return nil
}

func (p *program) restart(ctx context.Context) error {
	return errors.Join(p.stop(), p.start(ctx))
}
