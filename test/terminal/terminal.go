// SPDX-License-Identifier: Apache-2.0

// Package terminal runs programs in a terminal, types, and reads the screen. Package terminal uses
// tmux if the machine has tmux (apt-get install tmux). Without tmux, package terminal uses a
// pseudo-terminal of the kernel, and interprets the few sequences that our programs write.
package terminal

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Session is a terminal with a shell command in it.
type Session interface {
	// Screen returns the visible lines without trailing spaces.
	Screen() string
	// Type sends keys.
	Type(keys string)
	// Resize changes the terminal's size.
	Resize(columns, rows int)
	// Kind names the kind of terminal.
	Kind() string
}

// Start runs a shell command in a new terminal until the test ends.
func Start(t *testing.T, columns, rows int, env []string, command string) Session {
	t.Helper()
	if program, err := exec.LookPath("tmux"); err == nil {
		return startTmux(t, program, columns, rows, env, command)
	}
	return startPty(t, columns, rows, env, command)
}

// Await waits until wanted accepts the screen, and returns the screen.
func Await(t *testing.T, s Session, patience time.Duration, what string, wanted func(screen string) bool) string {
	t.Helper()
	screen := ""
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if screen = s.Screen(); wanted(screen) {
			return screen
		}
	}
	t.Fatalf("within %v the screen did not show (%s): %s\n%s", patience, s.Kind(), what, screen)
	return ""
}

// tmux is a session of a separate tmux server.
type tmux struct {
	*testing.T
	program, socket string
}

func startTmux(t *testing.T, program string, columns, rows int, env []string, command string) *tmux {
	t.Helper()
	dir, err := os.MkdirTemp("", "tmux") // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	s := &tmux{t, program, dir + "/s"}
	// The session gets the environment of the process that starts the server.
	start := s.command("-f", "/dev/null", "new-session", "-d", "-x", strconv.Itoa(columns), "-y", strconv.Itoa(rows), command)
	start.Env = append(slices.Clone(env), "TERM=xterm-256color", "LC_ALL=C.UTF-8")
	t.Cleanup(func() {
		_ = s.command("kill-server").Run()
		_ = os.RemoveAll(dir)
	})
	if out, err := start.CombinedOutput(); err != nil {
		t.Fatalf("tmux: %v: %s", err, out)
	}
	return s
}

func (s *tmux) command(args ...string) *exec.Cmd {
	return exec.CommandContext(context.Background(), s.program, append([]string{"-S", s.socket}, args...)...)
}

func (s *tmux) run(args ...string) string {
	s.Helper()
	out, err := s.command(args...).CombinedOutput()
	if err != nil {
		s.Fatalf("tmux %q: %v: %s", args, err, out)
	}
	return string(out)
}

func (s *tmux) Screen() string { s.Helper(); return s.run("capture-pane", "-p") }
func (s *tmux) Type(keys string) {
	s.Helper()
	// Type sends keys as bytes, so that tmux interprets no text as the name of a key.
	args := []string{"send-keys", "-H"}
	for _, b := range []byte(keys) {
		args = append(args, fmt.Sprintf("%x", b))
	}
	s.run(args...)
}

func (s *tmux) Resize(columns, rows int) {
	s.Helper()
	s.run("resize-window", "-x", strconv.Itoa(columns), "-y", strconv.Itoa(rows))
}

func (s *tmux) Kind() string { return strings.TrimSpace(s.run("-V")) }
