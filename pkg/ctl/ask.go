package ctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
	"github.com/nri-vgpu/nri-vgpu/pkg/query"
)

// watchInterval is between two looks of one who watches.
const watchInterval = time.Second

// Asking is how the agent is asked, and its answer written.
type Asking struct {
	// Socket is the agent's.
	Socket string
	// Format is one of Formats.
	Format string
	// Watch asks again every second until the context ends.
	Watch bool
	Out   io.Writer
}

// Socket is where to ask: on the node, and in the agent's pod, at the one for
// root, which containers do not have.
func Socket(runDir string) string {
	admin := layout.AdminSocket(runDir)
	if _, err := os.Lstat(admin); err == nil {
		return admin
	}
	return layout.AgentSocket(runDir)
}

// Processes writes those that use the GPUs.
func (a Asking) Processes(ctx context.Context) error {
	return show(ctx, a, query.Processes, processView)
}

// Devices writes the GPUs.
func (a Asking) Devices(ctx context.Context) error {
	return show(ctx, a, query.Devices, deviceView)
}

// Ping writes who answers, and how fast.
func (a Asking) Ping(ctx context.Context) error {
	begin := time.Now()
	pong, err := a.Agent(ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.Out, "pong: the agent on %s answers within %.1f ms\n", pong.Node, float64(time.Since(begin).Microseconds())/1000)
	return err
}

// Agent asks who answers.
func (a Asking) Agent(ctx context.Context) (query.Pong, error) {
	var pong query.Pong
	err := query.Client{Socket: a.Socket}.Ask(ctx, query.Ping, &pong)
	return pong, err
}

func show[T any](ctx context.Context, a Asking, question query.Question, v view[T]) error {
	if !slices.Contains(Formats, a.Format) {
		return fmt.Errorf("--output is %q; allowed: %s", a.Format, strings.Join(Formats, ", "))
	}
	screen := a.Watch && isTerminal(a.Out) && (a.Format == FormatTable || a.Format == FormatWide)
	w := &writer[T]{view: v, format: a.Format, out: a.Out, watched: a.Watch && !screen}
	for {
		var list []T
		err := query.Client{Socket: a.Socket}.Ask(ctx, question, &list)
		switch {
		case err != nil && (!a.Watch || !errors.Is(err, query.ErrAway)):
			return unlessEnded(ctx, err)
		case screen:
			err = redraw(w, err, list)
		case err != nil:
			fmt.Fprintln(os.Stderr, err) // an agent that is restarted comes back
			err = nil
		default:
			err = w.write(list)
		}
		if err != nil || !a.Watch || !sleep(ctx, watchInterval) {
			return err
		}
	}
}

// unlessEnded: who ends a watch has seen enough, and made no mistake.
func unlessEnded(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil
	}
	return err
}

// redraw shows a list in the place of the last one.
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

func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// IsMgctl tells whether a program was called by the name that MetaGPU's users know.
func IsMgctl(program string) bool { return filepath.Base(program) == layout.Mgctl }
