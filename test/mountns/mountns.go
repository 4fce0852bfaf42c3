// SPDX-License-Identifier: Apache-2.0

// Package mountns makes mount namespaces as container runtimes do, with file systems that hang, for
// tests of path look-ups in the namespaces. Package mountns needs root. A test package that uses
// mountns calls Main first in its TestMain.
package mountns

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Bind is a bind mount. From is a path of the host, and To is a path in the namespace.
type Bind struct{ From, To string }

// These variables make a test's program the first process of a namespace, or the server of a file
// system.
const (
	bindsVariable = "MOUNTNS_BINDS"
	hangVariable  = "MOUNTNS_HANG"
	holdVariable  = "MOUNTNS_HOLD"
)

// Main runs the programs of New, Hang and Hold in the processes that they start. In any other process
// Main returns.
func Main() {
	for variable, run := range map[string]func(string) error{bindsVariable: first, hangVariable: hang, holdVariable: hold} {
		arg, is := os.LookupEnv(variable)
		if !is {
			continue
		}
		if err := run(arg); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// startSelf starts the test's program again, with another task.
func startSelf(t testing.TB, variable, arg string, flags uintptr) (*exec.Cmd, io.Writer, *bufio.Reader) {
	t.Helper()
	child := exec.Command("/proc/self/exe")
	child.Env = append(os.Environ(), variable+"="+arg)
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL}
	child.Stderr = os.Stderr
	input, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	return child, input, bufio.NewReader(output)
}

// Namespace is a mount namespace with one process in it.
type Namespace struct {
	t testing.TB
	// PID is the process in the namespace.
	PID     int
	input   io.Writer
	answers *bufio.Reader
}

// New makes a namespace whose root is a directory of the host. New makes the mounts in order, as
// runc does. New resolves links inside the root, and creates missing mount points.
func New(t testing.TB, root string, binds ...Bind) *Namespace {
	t.Helper()
	arg, err := json.Marshal(append([]Bind{{root, "/"}}, binds...))
	if err != nil {
		t.Fatal(err)
	}
	child, input, output := startSelf(t, bindsVariable, string(arg), syscall.CLONE_NEWNS)
	t.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
	n := &Namespace{t, child.Process.Pid, input, output}
	n.answer("make the namespace")
	return n
}

func (n *Namespace) answer(what string) {
	n.t.Helper()
	line, err := n.answers.ReadString('\n')
	if err != nil || line != "ok\n" {
		n.t.Fatalf("%s: %s%v", what, line, err)
	}
}

// Do makes the process run an operation: rename A B, remove A, mkdir A, bind A B, chroot A or hang
// A. The operation hang mounts a file system that hangs.
func (n *Namespace) Do(words ...string) {
	n.t.Helper()
	if _, err := fmt.Fprintln(n.input, strings.Join(words, " ")); err != nil {
		n.t.Fatal(err)
	}
	n.answer(strings.Join(words, " "))
}

func first(arg string) error {
	var binds []Bind
	if err := json.Unmarshal([]byte(arg), &binds); err != nil {
		return err
	}
	server, err := openServer()
	if err != nil {
		return err
	}
	if err := enter(binds); err != nil {
		return err
	}
	fmt.Println("ok")
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		if err := do(server, strings.Fields(commands.Text())); err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println("ok")
	}
	return commands.Err()
}

func do(server hung, words []string) error {
	switch words[0] {
	case "rename":
		return os.Rename(words[1], words[2])
	case "remove":
		return os.Remove(words[1])
	case "mkdir":
		return os.MkdirAll(words[1], 0o755)
	case "bind":
		return unix.Mount(words[1], words[2], "", unix.MS_BIND, "")
	case "hang":
		return server.mount(words[1])
	case "chroot":
		return unix.Chroot(words[1])
	default:
		return fmt.Errorf("unknown command %q", words)
	}
}

// enter makes the mounts, and unmounts the host's file systems, as runc does.
func enter(binds []Bind) error {
	root := binds[0].From
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount(root, root, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount the root: %w", err)
	}
	for _, b := range binds[1:] {
		if err := bind(root, b); err != nil {
			return fmt.Errorf("mount %s at %s: %w", b.From, b.To, err)
		}
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the host's root: %w", err)
	}
	return os.Chdir("/")
}

func bind(root string, b Bind) error {
	info, err := os.Stat(b.From)
	if err != nil {
		return err
	}
	dir, err := inRoot(root, filepath.Dir(b.To))
	if err != nil {
		return err
	}
	to := filepath.Join(dir, filepath.Base(b.To))
	if info.IsDir() {
		if to, err = inRoot(root, b.To); err != nil {
			return err
		}
	} else if err := touch(to); err != nil {
		return err
	}
	return unix.Mount(b.From, to, "", unix.MS_BIND, "")
}

func touch(file string) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// inRoot resolves links within a root, and makes missing directories.
func inRoot(root, path string) (string, error) {
	at := root
	for name := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		next := filepath.Join(at, name)
		to, err := os.Readlink(next)
		switch {
		case err == nil && filepath.IsAbs(to):
			if next, err = inRoot(root, to); err != nil {
				return "", err
			}
		case err == nil:
			next = filepath.Join(at, to)
		case errors.Is(err, os.ErrNotExist):
			if err := os.Mkdir(next, 0o755); err != nil {
				return "", err
			}
		}
		at = next
	}
	return at, nil
}
