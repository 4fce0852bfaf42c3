// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
)

// Process is the kernel's data about a process.
type Process struct {
	// PID is the pid in the agent's pid namespace, which is the host's pid namespace.
	PID int
	// Started, in clock ticks since boot, and PID together identify a process uniquely.
	Started uint64
	// UID is the user id of the process on the host.
	UID uint32
	// InnerPID is the pid in the innermost pid namespace, which is the container's pid namespace.
	InnerPID uint32
	// Name is the short name, which the process may choose, made safe for a terminal.
	Name string
	Place
}

// ErrGone means that a process has ended.
var ErrGone = errors.New("the process has ended")

// Proc is the path of a procfs that shows the host's processes.
type Proc string

// HostProc is the procfs of the agent's pid namespace.
const HostProc Proc = "/proc"

// Look reads the kernel's data about a process. Another process may take the pid during the read:
// see Pin.
func (p Proc) Look(pid int) (Process, error) {
	process := Process{PID: pid}
	stat, err := p.read(pid, "stat")
	if err == nil {
		process.Started, err = parseStat(stat)
	}
	if err != nil {
		return Process{}, err
	}
	status, err := p.read(pid, "status")
	if err != nil {
		return Process{}, err
	}
	process.readStatus(status)
	cgroups, err := p.read(pid, "cgroup")
	if err != nil {
		return Process{}, err
	}
	process.Place = ParseCgroups(string(cgroups))
	return process, nil
}

// maxCommand bounds the bytes of a command line that Command returns.
const maxCommand = 256

// Command returns the command line of a process that Look returned, made safe for a terminal. If
// the process has no command line, Command returns the process's name. The process may choose
// command line and name. The kernel may block the read while the process hangs in a driver.
func (p Proc) Command(process Process) (string, error) {
	line, err := p.read(process.PID, "cmdline")
	if err != nil {
		line = nil
	}
	again, err := p.Look(process.PID)
	if err != nil {
		return "", err
	}
	if again.Started != process.Started {
		return "", fmt.Errorf("%w: another process has its pid", ErrGone)
	}
	return cmp.Or(printable(line), printable([]byte(process.Name))), nil
}

// printable returns a command line with blanks between the arguments.
func printable(line []byte) string {
	line = bytes.TrimRight(line[:min(len(line), maxCommand)], "\x00")
	return string(bytes.Map(func(r rune) rune {
		switch {
		case r == 0:
			return ' '
		case !unicode.IsPrint(r):
			return '?'
		default:
			return r
		}
	}, bytes.ToValidUTF8(line, []byte("?"))))
}

// maxProcFile bounds the bytes that read reads of a file in procfs.
const maxProcFile = 64 << 10

// read returns the content of a process's file. read avoids os.File, which first adds each file to
// the runtime's poller: the addition takes longer than the read.
func (p Proc) read(pid int, name string) ([]byte, error) {
	path := string(p) + "/" + strconv.Itoa(pid) + "/" + name
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: open %s: %w", ErrGone, path, err)
	}
	defer unix.Close(fd)
	content := make([]byte, 4096)
	for n := 0; ; {
		k, err := unix.Read(fd, content[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		n += max(k, 0)
		if k <= 0 || n == maxProcFile {
			if n == 0 {
				return nil, fmt.Errorf("%w: read %s: %w", ErrGone, path, cmp.Or(err, io.EOF))
			}
			return content[:n], nil
		}
		if n == len(content) {
			content = append(content, make([]byte, min(len(content), maxProcFile-n))...)
		}
	}
}

// parseStat returns field 22, the start time. Field 2, the name, may contain blanks and
// parentheses.
func parseStat(stat []byte) (uint64, error) {
	const started = 22 - 3 // counted from field 3
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) <= started {
		return 0, fmt.Errorf("%w: the process's stat has %d fields", ErrGone, len(fields)+2)
	}
	value, err := strconv.ParseUint(fields[started], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the start time of a process: %w", err)
	}
	return value, nil
}

func (p *Process) readStatus(status []byte) {
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":\t")
		fields := strings.Fields(value)
		switch {
		case key == "Name":
			p.Name = printable([]byte(value))
		case key == "Uid" && len(fields) > 1:
			p.UID = number(fields[1])
		case key == "NSpid" && len(fields) > 0:
			p.InnerPID = number(fields[len(fields)-1])
		}
	}
}

// number parses a number that the kernel wrote.
func number(text string) uint32 {
	value, _ := strconv.ParseUint(text, 10, 32)
	return uint32(value)
}

// Handle identifies a process even after its pid is reused.
type Handle struct{ fd int }

// Pin returns a handle of the process that currently has the pid, and the kernel's data about the
// process.
func (p Proc) Pin(pid int) (Process, Handle, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return Process{}, Handle{}, fmt.Errorf("%w: %w", ErrGone, err)
	}
	return p.pinned(pid, Handle{fd})
}

// pinned reads a process that has a handle, and closes the handle on failure.
func (p Proc) pinned(pid int, h Handle) (Process, Handle, error) {
	process, err := p.Look(pid)
	if err == nil && h.Ended() {
		// Look may have read a successor with the same pid.
		err = ErrGone
	}
	if err != nil {
		h.Close()
		return Process{}, Handle{}, err
	}
	return process, h, nil
}

// Ended reports whether the process has ended.
func (h Handle) Ended() bool {
	fds := []unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// Kill kills the process.
func (h Handle) Kill() error {
	if err := unix.PidfdSendSignal(h.fd, unix.SIGKILL, nil, 0); err != nil {
		return fmt.Errorf("kill the process: %w", err)
	}
	return nil
}

// Close closes the handle.
func (h Handle) Close() { _ = unix.Close(h.fd) }
