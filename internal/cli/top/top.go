// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
)

const (
	// enter switches to the terminal's alternate screen, hides the cursor and
	// disables line wrapping. leave restores the terminal.
	enter = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	leave = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	// home moves to the start of a frame. clear empties a line before the line is
	// written. Clearing a full line afterwards would erase its last character. below
	// empties the screen after the last line, which is never full.
	home, clear, below = "\x1b[H", "\x1b[2K", "\x1b[J"
	// pace is the shortest interval between redraws, unless a key is pressed.
	pace = 250 * time.Millisecond
)

// Options are the options of the live view.
type Options struct {
	Source show.Source
	Filter show.Filter
	Order  string
	// In and Out are the terminal.
	In, Out *os.File
	Color   bool
}

// Run shows the live view until the user or ctx ends it. Run always restores the
// terminal.
func Run(ctx context.Context, o Options) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	restore, err := takeOver(o)
	if err != nil {
		return fmt.Errorf("take over the terminal: %w", err)
	}
	defer func() {
		_, left := io.WriteString(o.Out, leave)
		err = errors.Join(err, left, restore())
	}()
	if _, err := io.WriteString(o.Out, enter); err != nil {
		return err
	}
	v := &view{options: o, known: map[string]agentapi.Overview{}}
	v.state = state{order: o.Order, errors: map[string]error{}, earlier: map[string]agentapi.Overview{}, color: o.Color}
	go o.Source.Follow(ctx, v.report)
	return v.loop(ctx)
}

// takeOver makes the terminal pass on each key and interpret escape sequences. The returned function
// restores the terminal.
func takeOver(o Options) (restore func() error, err error) {
	before, err := term.MakeRaw(int(o.In.Fd()))
	if err != nil {
		return nil, err
	}
	restoreKeys := func() error { return term.Restore(int(o.In.Fd()), before) }
	restoreOut, err := interpretEscapes(o.Out)
	if err != nil {
		return nil, errors.Join(err, restoreKeys())
	}
	return func() error { return errors.Join(restoreOut(), restoreKeys()) }, nil
}

// view is the live view. Sources call report concurrently.
type view struct {
	options Options

	mu    sync.Mutex
	known map[string]agentapi.Overview // by node
	state state
}

func (v *view) report(node string, o agentapi.Overview, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err != nil {
		v.state.errors[node] = err
		delete(v.known, node) // show nothing rather than stale data
		return
	}
	delete(v.state.errors, node)
	delete(v.state.errors, "")
	if last, ok := v.known[node]; ok && o.At.After(last.At) {
		v.state.earlier[node] = last
	}
	v.known[node] = o
}

// loop draws after each key, and at intervals, which also adapts the view to the terminal's size.
func (v *view) loop(ctx context.Context) error {
	keys := make(chan key)
	go readKeys(ctx, v.options.In, keys)
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		if err := v.draw(); err != nil {
			return fmt.Errorf("write to the terminal: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case k, open := <-keys:
			if !open || !v.press(k) {
				return nil
			}
		case <-tick.C:
		}
	}
}

// press handles a key, and reports whether to continue.
func (v *view) press(k key) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	page := 10
	switch k {
	case "q", "\x03":
		return false
	case "m":
		v.state.order = show.ByMemory
	case "t":
		v.state.order = show.ByTime
	case "n":
		v.state.order = show.ByName
	case keyUp, "k":
		v.state.scroll--
	case keyDown, "j":
		v.state.scroll++
	case keyPageUp, "b":
		v.state.scroll -= page
	case keyPageDown, " ":
		v.state.scroll += page
	}
	return true
}

func (v *view) draw() error {
	width, height, err := term.GetSize(int(v.options.Out.Fd()))
	if err != nil {
		return err
	}
	v.mu.Lock()
	all := make([]agentapi.Overview, 0, len(v.known))
	for _, o := range v.known {
		all = append(all, o)
	}
	v.state.overviews = v.options.Filter.Apply(all)
	v.state.now = time.Now()
	lines := frame(&v.state, width, height)
	v.mu.Unlock()
	// A single write avoids a half-drawn screen.
	_, err = io.WriteString(v.options.Out, home+clear+strings.Join(lines, "\r\n"+clear)+below)
	return err
}
