// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// Node runs the control program on the node, in the mount namespace of the node's first process.
// The daemon thus does not depend on the agent's image or on the agent's process. The daemon has a
// separate cgroup, so that it survives the end of the agent's container. Node needs a privileged
// container with the node's /proc. To outlive the container, the daemon must start in the host's
// pid namespace.
type Node struct {
	Config config.MPS
	Dirs   Dirs
}

// Start implements Host. The daemon gets a mount namespace like the node's, but with the /dev/shm
// of its clients' containers.
func (n Node) Start(_ context.Context, env []string) (pid int, err error) {
	err = onNode(func() error {
		if err := n.mountSHM(); err != nil {
			return err
		}
		cgroups, err := openCgroups("/sys/fs/cgroup")
		if err != nil {
			return err
		}
		defer closeAll(cgroups)
		if err := n.enterRoot(true); err != nil {
			return err
		}
		pid, err = n.start(env, cgroups)
		return err
	})
	return pid, err
}

// Control implements Host.
func (n Node) Control(ctx context.Context, env []string, command string) (answer string, err error) {
	err = onNode(func() error {
		if err := n.enterRoot(false); err != nil {
			return err
		}
		answer, err = control(ctx, n.Config.ControlProgram, env, command)
		return err
	})
	return answer, err
}

// control runs the control program for one command.
func control(ctx context.Context, program string, env []string, command string) (string, error) {
	var out, errs bytes.Buffer
	run := exec.CommandContext(ctx, program)
	run.Env = env
	run.Dir = "/"
	run.Stdin = strings.NewReader(command + "\n")
	run.Stdout, run.Stderr = &out, &errs
	// A child of a killed program may keep the program's output open.
	run.WaitDelay = time.Second
	if err := run.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, strings.TrimSpace(errs.String()+out.String()))
	}
	return out.String(), nil
}

// onNode calls a function on a new thread in the node's namespaces. The thread ends when the
// function returns.
func onNode(call func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		result <- func() error {
			if err := enterNode(); err != nil {
				return err
			}
			return call()
		}()
	}()
	return <-result
}

// enterNode moves the calling thread into the namespaces of the node's first process.
func enterNode() error {
	// A thread that shares its root and working directory cannot change its mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("leave the agent's root: %w", err)
	}
	for _, name := range []string{"cgroup", "mnt"} {
		ns, err := os.Open("/proc/1/ns/" + name)
		if err != nil {
			return fmt.Errorf("open the node's namespaces (the container must be privileged and have the node's /proc): %w", err)
		}
		err = unix.Setns(int(ns.Fd()), 0)
		ns.Close()
		if err != nil {
			return fmt.Errorf("enter the node's %s namespace (the container must be privileged): %w", name, err)
		}
	}
	return nil
}

// enterRoot moves the calling thread into the driver's root. For the daemon, enterRoot also mounts
// the directories that the daemon shares with its clients.
func (n Node) enterRoot(daemon bool) error {
	if daemon {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("make a mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
			return fmt.Errorf("stop the propagation of mounts to the node: %w", err)
		}
		if err := bindTo(n.Dirs.SHM, filepath.Join(n.Config.Root, "/dev/shm")); err != nil {
			return err
		}
	}
	if n.Config.Root == "/" {
		return nil
	}
	if !daemon {
		if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, "")); err != nil {
			return fmt.Errorf("make a mount namespace: %w", err)
		}
	}
	for _, dir := range []string{n.Dirs.State, n.Dirs.Logs} {
		if err := bindTo(dir, filepath.Join(n.Config.Root, dir)); err != nil {
			return err
		}
	}
	if err := unix.Chroot(n.Config.Root); err != nil {
		return fmt.Errorf("enter sharing.mps.root: %w", err)
	}
	return unix.Chdir("/")
}

func bindTo(dir, target string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", target, err)
	}
	if err := unix.Mount(dir, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", dir, target, err)
	}
	return nil
}

// mountSHM mounts the memory that the server shares with its clients, once per boot.
func (n Node) mountSHM() error {
	var above, here unix.Stat_t
	if err := errors.Join(unix.Stat(n.Dirs.State, &above), unix.Stat(n.Dirs.SHM, &here)); err != nil {
		return fmt.Errorf("stat %s: %w", n.Dirs.SHM, err)
	}
	if above.Dev != here.Dev {
		return nil
	}
	options := fmt.Sprintf("mode=1777,size=%dM", n.Config.SHMSizeMiB)
	if err := unix.Mount("nri-vgpu-mps", n.Dirs.SHM, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options); err != nil {
		return fmt.Errorf("mount %s: %w", n.Dirs.SHM, err)
	}
	return nil
}

func (n Node) start(env []string, cgroups []*os.File) (pid int, err error) {
	log, err := os.OpenFile(filepath.Join(n.Dirs.Logs, "daemon.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return 0, fmt.Errorf("open the daemon's log: %w", err)
	}
	defer log.Close()
	run := exec.Command(n.Config.ControlProgram, "-f")
	run.Env = env
	run.Dir = "/"
	run.Stdout, run.Stderr = log, log
	run.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := run.Start(); err != nil {
		return 0, fmt.Errorf("%w (sharing.mps.root, sharing.mps.control_program)", err)
	}
	// The daemon has no children yet, because clients cannot reach it yet.
	for _, procs := range cgroups {
		if _, err := procs.WriteString(strconv.Itoa(run.Process.Pid)); err != nil {
			return 0, errors.Join(fmt.Errorf("move the daemon to its own cgroup: %w", err), run.Process.Kill(), run.Wait())
		}
	}
	// Supervisor.watch detects the daemon's end, but only the agent can reap its child.
	go func() { _ = run.Wait() }()
	return run.Process.Pid, nil
}

// openCgroups creates the daemon's cgroup, and opens the cgroup's list of processes. With cgroups
// of version 1, openCgroups does both in each hierarchy.
func openCgroups(root string) ([]*os.File, error) {
	parents := []string{root}
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); errors.Is(err, fs.ErrNotExist) {
		if parents, err = hierarchies(root); err != nil {
			return nil, err
		}
	}
	var files []*os.File
	for _, parent := range parents {
		procs, err := openCgroup(parent)
		if err != nil {
			closeAll(files)
			return nil, fmt.Errorf("make a cgroup: %w", err)
		}
		files = append(files, procs)
	}
	return files, nil
}

// hierarchies returns the directories of the hierarchies of version 1. hierarchies omits links,
// which are second names of hierarchies.
func hierarchies(root string) ([]string, error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, fmt.Errorf("list the cgroup hierarchies: %w", err)
	}
	var all []string
	for _, entry := range entries {
		dir := filepath.Join(root, entry.Name())
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); entry.IsDir() && err == nil {
			all = append(all, dir)
		}
	}
	return all, nil
}

func openCgroup(parent string) (*os.File, error) {
	dir := filepath.Join(parent, Cgroup)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	// In version 1, a new cgroup must get processors and memory nodes before it can have processes.
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		own, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || strings.TrimSpace(string(own)) != "" {
			continue
		}
		if all, err := os.ReadFile(filepath.Join(parent, name)); err == nil {
			if err := os.WriteFile(filepath.Join(dir, name), all, 0o644); err != nil {
				return nil, err
			}
		}
	}
	return os.OpenFile(filepath.Join(dir, "cgroup.procs"), os.O_WRONLY, 0)
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
