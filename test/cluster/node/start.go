// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// namespaces are the new namespaces of a node. The supervisor makes the cgroup namespace after it
// has entered its cgroup.
const namespaces = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET |
	syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC

// A Started node waits for its network device.
type Started struct {
	// Pid is the supervisor's pid in this process's namespace.
	Pid int
	// Ended is closed when the supervisor has ended.
	Ended   <-chan struct{}
	goAhead *os.File
}

// Start starts the supervisor of the specification in stateDir, detached from the calling process,
// so that the supervisor survives the calling process.
func Start(stateDir string) (*Started, error) {
	if !hooked {
		return nil, errors.New("this program cannot start nodes: its main, or TestMain, does not call Supervise first")
	}
	out, err := openLog(stateDir, "supervisor")
	if err != nil {
		return nil, err
	}
	defer out.Close()
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start a node: %w", err)
	}
	defer read.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{argv0, stageEnter, stateDir}
	cmd.Env, cmd.Dir = nodeEnvironment(), "/"
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = []*os.File{read}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: namespaces}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start a node in new namespaces: %w", err), write.Close())
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	return &Started{Pid: cmd.Process.Pid, Ended: ended, goAhead: write}, nil
}

// GoAhead signals the supervisor to build the node.
func (s *Started) GoAhead() error {
	_, err := s.goAhead.Write([]byte{1})
	if err = errors.Join(err, s.goAhead.Close()); err != nil {
		return fmt.Errorf("start a node: %w", err)
	}
	return nil
}
