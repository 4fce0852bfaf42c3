// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// argv0 is the program name that starts a program as a supervisor.
const argv0 = "nri-vgpu-node"

// The supervisor executes itself a second time. A cgroup namespace belongs to a single thread
// until an exec makes the thread the whole process.
const (
	stageEnter = "enter"
	stageRun   = "run"
)

// goAheadFD is a pipe. The starting process writes a byte to the pipe when the node's network
// device exists.
const goAheadFD = 3

// hooked records that the running program called Supervise, so that the program can be started
// again as a supervisor.
var hooked bool

// Supervise must be the first call in main, or in TestMain, of a program that starts nodes. If the
// program was started as a supervisor, Supervise runs the supervisor and does not return.
func Supervise() {
	hooked = true
	if len(os.Args) != 3 || os.Args[0] != argv0 {
		return
	}
	log.SetFlags(log.Ltime | log.Lmicroseconds)
	stage, stateDir := os.Args[1], os.Args[2]
	stages := map[string]func(string) error{stageEnter: enter, stageRun: run}
	if err := stages[stage](stateDir); err != nil {
		log.Printf("error: %v", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// enter waits for the go-ahead, joins the node's cgroups, and makes these cgroups the root of a
// cgroup namespace.
func enter(stateDir string) error {
	unix.Umask(0o022)
	s, err := readSpec(stateDir)
	if err != nil {
		return err
	}
	if err := awaitGoAhead(); err != nil {
		return err
	}
	mounts, err := readMounts()
	if err != nil {
		return err
	}
	trees := hierarchies(mounts)
	if err := enterCgroup(trees, s.Cgroup); err != nil {
		return err
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("make a cgroup namespace: %w", err)
	}
	if err := enterSystemCgroup(trees, s.Cgroup); err != nil {
		return err
	}
	err = unix.Exec("/proc/self/exe", []string{argv0, stageRun, stateDir}, os.Environ())
	return fmt.Errorf("execute the supervisor again: %w", err)
}

func awaitGoAhead() error {
	pipe := os.NewFile(goAheadFD, "go-ahead")
	defer pipe.Close()
	if n, err := pipe.Read(make([]byte, 1)); n != 1 {
		return fmt.Errorf("the process that started this node has ended: %w", err)
	}
	return nil
}

// run builds the node, and serves until a signal ends the supervisor.
func run(stateDir string) error {
	s, err := readSpec(stateDir)
	if err != nil {
		return err
	}
	mounts, err := readMounts()
	if err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(s.Name)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if err := buildRoot(s, mounts); err != nil {
		return err
	}
	if err := setupNetwork(s); err != nil {
		return err
	}
	if err := runSetup(s); err != nil {
		return err
	}
	m := newManager(s)
	go m.reap()
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	if err := serveControl(filepath.Join(stateDir, controlFile), m); err != nil {
		return err
	}
	go m.startAll()
	log.Printf("the node is up; got %v, ending it", <-end)
	return nil
}

// nodeEnvironment returns the environment of a node's components and commands. nodeEnvironment
// ignores the starting process's environment, because the machine's proxy is not a proxy for the
// cluster. With GOGC, a component collects garbage less often and uses more memory, because several
// nodes share the processors of one machine.
func nodeEnvironment() []string {
	return []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8", "GOGC=400"}
}

// runSetup runs the commands that prepare the node.
func runSetup(s Spec) error {
	out, err := openLog(s.StateDir, "setup")
	if err != nil {
		return err
	}
	defer out.Close()
	for _, argv := range s.Setup {
		if len(argv) == 0 {
			return errors.New("a set-up command is empty")
		}
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Stdout, cmd.Stderr, cmd.Env = out, out, nodeEnvironment()
		if cmd.Err != nil {
			return fmt.Errorf("set up the node: %w", cmd.Err)
		}
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("set up the node: %s: %w (its output: %s)", strings.Join(argv, " "), err, out.Name())
		}
	}
	return nil
}

func openLog(stateDir, component string) (*os.File, error) {
	f, err := os.OpenFile(LogFile(stateDir, component), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", component, err)
	}
	return f, nil
}
