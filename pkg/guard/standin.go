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

	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
)

// A runtime drops a plugin that once takes too long to answer, as on a machine
// that is overloaded or when it was itself stopped meanwhile, kills it, and does
// not start it again before its own next start. The container that it then
// creates has been asked about by nobody. So a guard starts a stand-in: the same
// program, which registers over the runtime's socket as a plugin after it, is
// asked in the very same request, and comes back as often as it is dropped.

// standInVariable tells a process that it is a stand-in, and the runtime's id.
const standInVariable = "NRI_VGPU_GUARD_STANDS_IN_AT"

// standInPause is how long after a lost connection the next attempt comes.
const standInPause = 200 * time.Millisecond

// StartStandIn starts the stand-in of this guard, which the runtime has started.
func StartStandIn(program string) error {
	// Were the runtime's connection inherited, it would not see our end.
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

// StandsIn tells whether this process is a stand-in, and for which runtime.
func StandsIn() (runtime int, ok bool) {
	runtime, err := strconv.Atoi(os.Getenv(standInVariable))
	return runtime, err == nil
}

// StandIn answers the runtime beside the guard that started this process, until
// the runtime ends, whose next process starts a guard itself.
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
		if s, installed := g.settings(); installed {
			// Why a connection was lost, nobody would hear.
			_ = g.Run(ctx, stub.WithSocketPath(s.Socket),
				stub.WithPluginName(layout.StandInName), stub.WithPluginIdx(layout.GuardIndex))
		}
		select {
		case <-ctx.Done():
		case <-time.After(standInPause):
		}
	}
	return nil
}

// awaitEnd waits until the process of a descriptor has ended.
func awaitEnd(fd int) {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
