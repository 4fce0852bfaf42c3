// SPDX-License-Identifier: Apache-2.0

// Package show queries agents for the users of GPUs. The package writes the answers as
// tables, as JSON or YAML, or line by line.
package show

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/term"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
)

// watchInterval is the interval between queries while watching.
const watchInterval = time.Second

// Asking describes a query to the agent and the output of its answer.
type Asking struct {
	// Socket is the path of the agent's socket.
	Socket string
	// Format is one of Formats.
	Format string
	// Watch repeats the query every second until the context ends.
	Watch bool
	Out   io.Writer
}

// Socket returns the path of root's socket, if root's socket exists, and the path of the agent's
// socket in other cases. Root's socket exists on the node and in the agent's pod, and not in other
// containers.
func Socket(runDir string) string {
	admin := paths.AdminSocket(runDir)
	if _, err := os.Lstat(admin); err == nil {
		return admin
	}
	return paths.AgentSocket(runDir)
}

// Processes writes the processes that use the GPUs.
func (a Asking) Processes(ctx context.Context) error {
	return show(ctx, a, agentapi.Processes, processView)
}

// Devices writes the GPUs.
func (a Asking) Devices(ctx context.Context) error {
	return show(ctx, a, agentapi.Devices, deviceView)
}

// Ping writes the node of the agent that answers, and the time that the answer took.
func (a Asking) Ping(ctx context.Context) error {
	begin := time.Now()
	pong, err := a.Agent(ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.Out, "pong: the agent on %s answers within %.1f ms\n", pong.Node, float64(time.Since(begin).Microseconds())/1000)
	return err
}

// Agent returns the agent's answer to a ping.
func (a Asking) Agent(ctx context.Context) (agentapi.Pong, error) {
	var pong agentapi.Pong
	err := agentapi.Client{Socket: a.Socket}.Ask(ctx, agentapi.Ping, &pong)
	return pong, err
}

func show[T any](ctx context.Context, a Asking, question agentapi.Question, v view[T]) error {
	if err := CheckFormat(a.Format, Formats); err != nil {
		return err
	}
	screen := a.Watch && IsTerminal(a.Out) && (a.Format == FormatTable || a.Format == FormatWide)
	w := &writer[T]{view: v, format: a.Format, out: a.Out, watched: a.Watch && !screen}
	for {
		var list []T
		err := agentapi.Client{Socket: a.Socket}.Ask(ctx, question, &list)
		switch {
		case err != nil && (!a.Watch || !errors.Is(err, agentapi.ErrAway)):
			return unlessEnded(ctx, err)
		case screen:
			err = redraw(w, err, list)
		case err != nil:
			fmt.Fprintln(os.Stderr, err) // a restarted agent answers again
			err = nil
		default:
			err = w.write(list)
		}
		if err != nil || !a.Watch || !loop.Sleep(ctx, watchInterval) {
			return err
		}
	}
}

// unlessEnded returns nil if the user ended the watch, and err otherwise.
func unlessEnded(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil
	}
	return err
}

// redraw replaces the last list on the screen with list.
func redraw[T any](w *writer[T], away error, list []T) error {
	const home, clear = "\x1b[H", "\x1b[2J"
	if _, err := fmt.Fprint(w.out, home+clear+time.Now().Format(time.TimeOnly)+"\n"); err != nil {
		return err
	}
	if away != nil {
		_, err := fmt.Fprintln(w.out, away)
		return err
	}
	return w.write(list)
}

// IsTerminal reports whether out is a terminal.
func IsTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// IsMgctl reports whether program is named like MetaGPU's command.
func IsMgctl(program string) bool { return filepath.Base(program) == paths.Mgctl }
