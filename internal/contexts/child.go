// SPDX-License-Identifier: Apache-2.0

package contexts

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// ProgramName is the name of the program that makes a context. The program is installed beside the
// interposer.
const ProgramName = "vgpu-context"

// endTime is the time that a process may take to end before it is killed.
const endTime = 5 * time.Second

// Child makes contexts in processes of a program.
type Child struct {
	// Program is the path of ProgramName.
	Program string
	// Library returns the path of the driver's libcuda.so.1; with "" the loader finds the library.
	Library func() (string, error)

	// pid is the pid of the last started process, until the process has ended.
	pid atomic.Int64

	mu sync.Mutex
	// stuck is a process that was killed and has not ended, because it hangs in the driver.
	stuck *child
}

// ErrStuck reports that the process of an earlier measurement hangs in the driver.
var ErrStuck = errors.New("the process of an earlier attempt hangs in the driver")

// Make starts the program and waits until the program has its context.
func (c *Child) Make(ctx context.Context, uuid string) (Made, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stuck != nil && !c.stuck.ended() {
		return nil, ErrStuck
	}
	c.stuck = nil
	library, err := c.Library()
	if err != nil {
		return nil, err
	}
	made, err := start(c, library, uuid)
	if err != nil {
		return nil, err
	}
	if err := made.await(ctx); err != nil {
		c.kill(made)
		return nil, fmt.Errorf("%w%s", err, made.errorOutput())
	}
	return made, nil
}

// Is reports whether a process is currently making a context. Is never waits.
func (c *Child) Is(pid int) bool { return pid > 0 && c.pid.Load() == int64(pid) }

// kill kills a process, and records a process that does not end. The caller holds c.mu.
func (c *Child) kill(made *child) {
	_ = made.command.Process.Kill()
	select {
	case <-made.done:
	case <-time.After(endTime):
		c.stuck = made
	}
}

// child is a process that makes a context.
type child struct {
	owner   *Child
	command *exec.Cmd
	input   io.Closer
	ready   chan error
	done    chan struct{}
	errors  bytes.Buffer // to be read when done
}

func start(owner *Child, library, uuid string) (*child, error) {
	program := owner.Program
	c := &child{owner: owner, command: exec.Command(program, library, uuid), ready: make(chan error, 1), done: make(chan struct{})}
	c.command.Env = environment(os.Environ(), uuid)
	c.command.Stderr = &c.errors
	// After a kill, Wait waits only for the process itself, and not for its pipes.
	c.command.WaitDelay = time.Second
	input, err := c.command.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	c.input = input
	output, err := c.command.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	if err := c.command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	pid := int64(c.PID())
	owner.pid.Store(pid)
	go func() {
		line, err := bufio.NewReader(io.LimitReader(output, 64)).ReadString('\n')
		if err == nil && strings.TrimSpace(line) != "ready" {
			err = fmt.Errorf("the process printed %q", line)
		}
		c.ready <- err
		_ = c.command.Wait()
		owner.pid.CompareAndSwap(pid, 0)
		close(c.done)
	}()
	return c, nil
}

// environment returns the child's environment. The child sees one GPU, is not a client of MPS, and
// preloads no library.
func environment(env []string, uuid string) []string {
	var own []string
	for _, entry := range env {
		name, _, _ := strings.Cut(entry, "=")
		if name != "LD_PRELOAD" && name != "NRI_VGPU_DIR" && !strings.HasPrefix(name, "CUDA_") {
			own = append(own, entry)
		}
	}
	return append(own, "CUDA_VISIBLE_DEVICES="+uuid, "CUDA_MPS_PIPE_DIRECTORY=/nonexistent")
}

// await waits until the context exists.
func (c *child) await(ctx context.Context) error {
	select {
	case err := <-c.ready:
		if err == nil {
			return nil
		}
		return errors.New("the driver makes none")
	case <-ctx.Done():
		return errors.New("the driver did not answer in time")
	}
}

// errorOutput returns the error output of the process, once the process has ended.
func (c *child) errorOutput() string {
	if !c.ended() || c.errors.Len() == 0 {
		return ""
	}
	return ": " + strings.TrimSpace(string(c.errors.Bytes()[:min(c.errors.Len(), 300)]))
}

func (c *child) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// PID returns the pid of the process.
func (c *child) PID() int { return c.command.Process.Pid }

// End ends the process, and kills it if necessary.
func (c *child) End(ctx context.Context) error {
	c.input.Close()
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
	}
	c.owner.mu.Lock()
	defer c.owner.mu.Unlock()
	c.owner.kill(c)
	if !c.ended() {
		return ErrStuck
	}
	return nil
}

// Program returns the path of the program that makes contexts, from the installation of the running
// program.
func Program() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	return filepath.Join(filepath.Dir(self), "..", "lib", ProgramName), nil
}
