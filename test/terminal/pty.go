// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// pty is a pseudo-terminal of the kernel.
type pty struct {
	*testing.T
	master *os.File

	mu     sync.Mutex
	screen screen
}

func startPty(t *testing.T, columns, rows int, env []string, command string) *pty {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := &pty{T: t, master: master}
	p.screen.resize(columns, rows)
	number := 0
	p.control(func(fd int) (err error) {
		if err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err == nil {
			number, err = unix.IoctlGetInt(fd, unix.TIOCGPTN)
		}
		return err
	})
	p.Resize(columns, rows)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	shell := exec.Command("/bin/sh", "-c", command)
	shell.Env = append(slices.Clone(env), "TERM=xterm-256color")
	shell.Stdin, shell.Stdout, shell.Stderr = slave, slave, slave
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	go p.read()
	t.Cleanup(func() {
		_ = syscall.Kill(-shell.Process.Pid, syscall.SIGKILL)
		_ = shell.Wait()
		_ = master.Close()
	})
	return p
}

// control runs an operation on the terminal's descriptor. The runtime keeps waiting on the
// descriptor.
func (p *pty) control(do func(fd int) error) {
	p.Helper()
	raw, err := p.master.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			if failed := do(int(fd)); failed != nil {
				p.Errorf("the terminal: %v", failed)
			}
		})
	}
	if err != nil {
		p.Fatal(err)
	}
}

func (p *pty) read() {
	raw := make([]byte, 64<<10)
	for {
		n, err := p.master.Read(raw)
		p.mu.Lock()
		p.screen.write(string(raw[:n]))
		p.mu.Unlock()
		if err != nil {
			return // the last program in the terminal has ended
		}
	}
}

func (p *pty) Screen() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.screen.text()
}

func (p *pty) Type(keys string) {
	p.Helper()
	if _, err := p.master.WriteString(keys); err != nil {
		p.Fatal(err)
	}
}

func (p *pty) Resize(columns, rows int) {
	p.Helper()
	p.mu.Lock()
	p.screen.resize(columns, rows)
	p.mu.Unlock()
	p.control(func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(columns), Row: uint16(rows)})
	})
}

func (p *pty) Kind() string { return "a terminal of the kernel's" }

// screen is the state of a terminal that interprets the sequences of our programs: lines, cursor
// home, clearing, and the alternate screen.
type screen struct {
	columns, rows int
	lines         [][]rune
	x, y          int
	other         [][]rune // the screen that is hidden
	otherX        int
	otherY        int
	pending       string
}

func (s *screen) resize(columns, rows int) {
	s.columns, s.rows = columns, rows
	for len(s.lines) < rows {
		s.lines = append(s.lines, nil)
	}
	for len(s.lines) > rows {
		s.lines = s.lines[1:]
		s.y = max(s.y-1, 0)
	}
}

func (s *screen) text() string {
	var b strings.Builder
	for _, line := range s.lines {
		b.WriteString(strings.TrimRight(string(line), " ") + "\n")
	}
	return b.String()
}

func (s *screen) write(text string) {
	text = s.pending + text
	s.pending = ""
	for text != "" {
		if strings.HasPrefix(text, "\x1b") {
			end := strings.IndexFunc(text[1:], func(r rune) bool { return r >= 0x40 && r <= 0x7e && r != '[' })
			if end < 0 {
				s.pending = text
				return
			}
			s.obey(text[1 : end+2])
			text = text[end+2:]
			continue
		}
		r := []rune(text)[0]
		text = text[len(string(r)):]
		s.put(r)
	}
}

func (s *screen) put(r rune) {
	switch r {
	case '\r':
		s.x = 0
	case '\n':
		if s.y++; s.y >= s.rows {
			s.y = s.rows - 1
			s.lines = append(s.lines[1:], nil)
		}
	default:
		if r < ' ' || s.x >= s.columns {
			return
		}
		line := s.lines[s.y]
		for len(line) <= s.x {
			line = append(line, ' ')
		}
		line[s.x] = r
		s.lines[s.y] = line
		s.x++
	}
}

func (s *screen) obey(sequence string) {
	switch sequence {
	case "[H":
		s.x, s.y = 0, 0
	case "[2K":
		s.lines[s.y] = nil
	case "[J":
		s.lines[s.y] = s.lines[s.y][:min(s.x, len(s.lines[s.y]))]
		for i := s.y + 1; i < s.rows; i++ {
			s.lines[i] = nil
		}
	case "[?1049h", "[?1049l":
		s.lines, s.other = s.other, s.lines
		s.x, s.y, s.otherX, s.otherY = s.otherX, s.otherY, s.x, s.y
		if sequence == "[?1049h" {
			s.lines, s.x, s.y = nil, 0, 0
		}
		s.resize(s.columns, s.rows)
	}
}
