// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
)

// After a single late answer, a runtime kills a plugin, and does not start the plugin again before
// the runtime itself restarts. A plugin is late on an overloaded machine or after SIGSTOP. No
// plugin then judges the container that the runtime is creating. Therefore a guard starts a
// stand-in: the same program, which registers over the runtime's socket as a plugin behind the
// guard. The runtime calls the stand-in for the same request, and the stand-in reconnects whenever
// the runtime drops it.

// standInVariable marks a process as a stand-in, and contains the runtime's pid.
const standInVariable = "NRI_VGPU_GUARD_STANDS_IN_AT"

// standInPause is the pause between a lost connection and the next attempt.
const standInPause = 200 * time.Millisecond

// StartStandIn starts the stand-in of this guard.
func StartStandIn(program string) error {
	// If the stand-in inherited the runtime's connection, the runtime would not detect the guard's
	// exit.
	if fd, err := strconv.Atoi(os.Getenv(api.PluginSocketEnvVar)); err == nil {
		unix.CloseOnExec(fd)
	}
	cmd := exec.Command(program)
	cmd.Env = []string{standInVariable + "=" + strconv.Itoa(os.Getppid())}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the guard's stand-in: %w", err)
	}
	go func() { _ = cmd.Wait() }()
	return nil
}

// StandsIn reports whether this process is a stand-in, and for which runtime.
func StandsIn() (runtime int, ok bool) {
	runtime, err := strconv.Atoi(os.Getenv(standInVariable))
	return runtime, err == nil
}

// StandIn answers the runtime beside the guard that started this process, until the runtime exits.
// The next runtime starts a new guard.
func (g *Guard) StandIn(ctx context.Context, runtime int) error {
	fd, err := unix.PidfdOpen(runtime, 0)
	if err != nil {
		return fmt.Errorf("watch the runtime, process %d: %w", runtime, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		awaitEnd(fd)
	}()
	for ctx.Err() == nil {
		if r, installed := g.rules(); installed {
			// Run's error is ignored: nothing reads the cause of a lost connection.
			_ = g.Run(ctx, stub.WithSocketPath(r.Socket),
				stub.WithPluginName(paths.StandInName), stub.WithPluginIdx(paths.GuardIndex))
		}
		loop.Sleep(ctx, standInPause)
	}
	return nil
}

// awaitEnd waits until the process of a pidfd has exited.
func awaitEnd(fd int) {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
