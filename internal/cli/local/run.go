// SPDX-License-Identifier: Apache-2.0

package local

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

const (
	// pagesVariable contains the path of the interposer's pages outside Kubernetes
	// containers.
	pagesVariable = "NRI_VGPU_DIR"
	// containerDir is the directory of the pages in a Kubernetes container.
	containerDir = "/run/nri-vgpu"
	// devicesProgram lists GPUs. devicesProgram is installed beside the interposer.
	devicesProgram = "vgpu-devices"
	// devicesTimeout bounds the driver's start, which takes seconds on a machine
	// without persistence mode.
	devicesTimeout = time.Minute
	// WatchCommand is the hidden command of vgpuctl that removes a group after its
	// last member has ended. The arguments are the directory of groups and the
	// group's name.
	WatchCommand = "watch-group"
)

// ProgramError reports that a program cannot be started.
type ProgramError struct{ error }

// NewProgramError returns the ProgramError of a cause.
func NewProgramError(cause error) ProgramError { return ProgramError{cause} }

// Unwrap returns the cause.
func (e ProgramError) Unwrap() error { return e.error }

// Missing reports whether the program does not exist.
func (e ProgramError) Missing() bool {
	return errors.Is(e.error, exec.ErrNotFound) || errors.Is(e.error, fs.ErrNotExist)
}

// Run replaces this process with a program under limits. The program inherits the
// process ID, the terminal, signals and the exit status. Run returns only on error. The error is a
// ProgramError if the program cannot be started.
//
// A watcher process waits for the program and all its descendants, and then removes
// the pages. If the watcher is killed, the next Run removes the pages.
func Run(ctx context.Context, r Request, group string, command []string) error {
	program, err := exec.LookPath(command[0])
	if err != nil {
		return NewProgramError(fmt.Errorf("find the program: %w", err))
	}
	if err := NotLimited(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find vgpuctl: %w", err)
	}
	lib, err := FindLibraries(LibraryDirs(self, os.Getenv))
	if err != nil {
		return err
	}
	groups, err := OpenGroups(GroupsDir(os.Getenv, os.Getuid()))
	if err != nil {
		return err
	}
	devices, err := wanted(ctx, r, lib, groups)
	if err != nil {
		return err
	}
	if group == "" {
		group = fmt.Sprintf("run-%d-%s", os.Getpid(), rand.Text()[:6])
	}
	member, err := groups.Join(group, devices)
	if err != nil {
		return err
	}
	if member.Founder || !groups.watched(group) {
		if err := startWatcher(self, groups, group); err != nil {
			return errors.Join(err, member.Close())
		}
	}
	if err := inherit(member.File); err != nil {
		return err
	}
	lib = DriverLibraries(lib, groups.Dir(group), os.Getenv)
	env := Environment(os.Environ(), lib, groups.Dir(group), member.Devices)
	return NewProgramError(fmt.Errorf("start %s: %w", program, unix.Exec(program, command, env)))
}

// NotLimited returns an error if this process already runs under limits.
func NotLimited() error { return notYetLimited(containerDir, os.Getenv) }

// notYetLimited returns an error if limits already apply. A container's limits would
// override the run's, and the program would escape the limits of an outer run.
func notYetLimited(container string, getenv func(string) string) error {
	if _, err := os.Lstat(filepath.Join(container, limits.LimitsFile)); err == nil {
		return errors.New("this container already has limits by Kubernetes; `vgpuctl status` shows the limits")
	}
	if dir := getenv(pagesVariable); dir != "" {
		return fmt.Errorf("the limits in %s already apply here; `vgpuctl status` shows them", dir)
	}
	return nil
}

// wanted returns the limits of a run, nil if the run takes the limits of its group.
func wanted(ctx context.Context, r Request, lib string, groups Groups) ([]limits.Device, error) {
	if r.Empty() {
		return nil, nil
	}
	gpus, err := listGPUs(ctx, filepath.Join(lib, devicesProgram))
	if err != nil {
		return nil, fmt.Errorf("list the GPUs: %w", err)
	}
	devices, err := r.Devices(gpus)
	if err != nil {
		return nil, err
	}
	groups.sizeContexts(ctx, lib, gpus, devices)
	return devices, nil
}

// listGPUs lists the GPUs that CUDA reports, with the indices that nvidia-smi uses.
func listGPUs(ctx context.Context, program string) ([]GPU, error) {
	ctx, cancel := context.WithTimeout(ctx, devicesTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(cmd.Environ(), "CUDA_DEVICE_ORDER=PCI_BUS_ID")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("the driver did not answer within %s", devicesTimeout)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(stderr.String()))
	}
	var gpus []GPU
	if err := json.Unmarshal(out, &gpus); err != nil {
		return nil, fmt.Errorf("%s: %w", program, err)
	}
	return gpus, nil
}

// startWatcher starts the process that cleans up after the group. The watcher is not
// a child of the program, because a program may wait for all its children. If this
// is the first process of a container, the container's end cleans up.
func startWatcher(self string, groups Groups, group string) error {
	if os.Getpid() == 1 {
		return nil
	}
	watcher := exec.Command(self, WatchCommand, groups.dir, group)
	if err := watcher.Run(); err != nil {
		return fmt.Errorf("start the watcher of group %q: %w", group, err)
	}
	return nil
}

// Watch watches a group. Watch answers processes' queries for the memory that they
// hold, lends idle time, and removes the group after its last member has ended.
// Without detached, Watch starts a second, orphaned copy of itself and returns once the copy
// answers. With detached, Watch stays.
func Watch(dir, group string, detached bool) error {
	if detached {
		return Groups{dir}.watch(group)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find vgpuctl: %w", err)
	}
	answers, answering, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start the watcher: %w", err)
	}
	defer answers.Close()
	orphan := exec.Command(self, WatchCommand, "--detached", dir, group)
	orphan.Dir, orphan.Env = "/", watcherEnvironment(os.Environ())
	orphan.ExtraFiles = []*os.File{answering} // as answeringFD
	orphan.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = orphan.Start()
	answering.Close()
	if err != nil {
		return err
	}
	_ = answers.SetReadDeadline(time.Now().Add(watcherPatience))
	_, _ = answers.Read(make([]byte, 1)) // the watcher closes the pipe in any case
	return nil
}

// lowestFD keeps the lock's descriptor out of the range that shells and programs use
// by number.
const lowestFD = 200

// inherit lets the program inherit a member's lock.
func inherit(members *os.File) error {
	// The duplicate has no close-on-exec flag. The duplicate shares the lock, which
	// belongs to the open file.
	if _, err := unix.FcntlInt(members.Fd(), unix.F_DUPFD, lowestFD); err != nil {
		return fmt.Errorf("pass the group's lock to the program: %w", err)
	}
	return nil
}

// Environment returns the environment of a program under limits. Environment
// preloads the interposer before other libraries, sets the path of the pages, and
// limits CUDA to the GPUs that have limits. The interposer refuses other GPUs.
func Environment(env []string, lib, pages string, devices []limits.Device) []string {
	var preload, uuids []string
	for _, name := range libraryNames {
		preload = append(preload, filepath.Join(lib, name))
	}
	for _, d := range devices {
		uuids = append(uuids, d.UUID)
	}
	var own []string
	for _, entry := range env {
		name, value, _ := strings.Cut(entry, "=")
		switch name {
		case "LD_PRELOAD":
			if value != "" {
				preload = append(preload, value)
			}
		case pagesVariable, "CUDA_VISIBLE_DEVICES":
		default:
			own = append(own, entry)
		}
	}
	return append(own,
		"LD_PRELOAD="+strings.Join(preload, ":"),
		pagesVariable+"="+pages,
		"CUDA_VISIBLE_DEVICES="+strings.Join(uuids, ","))
}
