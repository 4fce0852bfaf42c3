package ctl

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/pkg/contexts"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/held"
	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/registry"
)

const (
	// watcherFile is locked by a group's watcher.
	watcherFile = "watcher"
	// answeringFD is closed by a watcher that answers.
	answeringFD = 3
	// watcherPatience bounds the wait for that: without it, a run's processes go on by
	// estimates.
	watcherPatience = time.Second
)

// watcherEnvironment is the run's, as the driver's libraries may be found by it, less
// what is for the program.
func watcherEnvironment(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return name == "LD_PRELOAD" || name == pagesVariable
	})
}

// watch is the life of a watcher. A second one of the same group waits until the first
// has ended, and takes over what is left of the group.
func (g Groups) watch(group string) error {
	answering := answeringPipe()
	path := filepath.Join(g.Dir(group), watcherFile)
	lock, err := lockFile(path, os.O_CREATE, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		answering.Close()
		lock, err = lockFile(path, os.O_CREATE, unix.LOCK_EX)
	}
	if err != nil {
		return nil // the group has gone
	}
	defer lock.Close()
	if !isFileAt(lock, path) {
		return nil // that group has gone, and another one has its own watcher
	}
	ctx, cancel := context.WithCancel(context.Background())
	var answers sync.WaitGroup
	defer answers.Wait()
	defer cancel()
	answers.Go(func() { g.answer(ctx, group, sync.OnceFunc(func() { answering.Close() })) })
	go g.lend(group) // until this process ends
	return g.RemoveWhenEmpty(group)
}

// answeringPipe is what vgpuctl run waits for; a file that is closed where nobody does.
func answeringPipe() *os.File {
	var stat unix.Stat_t
	if err := unix.Fstat(answeringFD, &stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFIFO {
		return nil
	}
	unix.CloseOnExec(answeringFD)
	return os.NewFile(answeringFD, "answering")
}

// watched reports whether a group has a watcher.
func (g Groups) watched(group string) bool {
	lock, err := lockFile(filepath.Join(g.Dir(group), watcherFile), 0, unix.LOCK_SH|unix.LOCK_NB)
	if err == nil {
		lock.Close()
	}
	return errors.Is(err, unix.EWOULDBLOCK)
}

func isFileAt(file *os.File, path string) bool {
	own, err := file.Stat()
	if err != nil {
		return false
	}
	now, err := os.Stat(path)
	return err == nil && os.SameFile(own, now)
}

// answer serves the socket at which a group's processes ask what they hold, until ctx
// ends. Where NVML is not known to list processes by their pids it serves none: their
// charge stays what is estimated.
func (g Groups) answer(ctx context.Context, group string, answering func()) {
	defer answering()
	page := filepath.Join(g.Dir(group), limits.LimitsFile)
	devices, err := limits.Read(page)
	if err != nil {
		return
	}
	uuids := g.listed(devices)
	lib, err := OwnLibraries()
	if len(uuids) == 0 || err != nil {
		return
	}
	driver := newNVML(lib)
	defer driver.close()
	looks := gpu.NewLooks(driver)
	server := registry.Server{
		Path: layout.AgentSocket(g.Dir(group)), Registry: registry.New(), Proc: registry.HostProc,
		Log: slog.New(slog.DiscardHandler), Listening: answering,
		Holdings: held.Holdings{Looks: looks, GPUs: func(string) []string { return uuids }},
		// NVML takes its time to open: it is, when the first process has begun.
		Connected: sync.OnceFunc(func() {
			for _, uuid := range uuids {
				looks.Ask(uuid)
			}
		}),
	}
	for ctx.Err() == nil {
		if !listening(ctx, server.Path) { // else somebody else answers
			_ = server.Serve(ctx)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
		if _, err := os.Stat(page); err != nil {
			return // the group has gone, and its directory must not come again
		}
	}
}

// listening reports whether somebody accepts connections at a socket.
func listening(ctx context.Context, path string) bool {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unixpacket", path)
	if err == nil {
		conn.Close()
	}
	return err == nil
}

// listed are the GPUs whose processes NVML was found to list, in this pid namespace, by
// their pids and with what they hold.
func (g Groups) listed(devices []limits.Device) []string {
	sizes, err := contexts.ReadFile(g.contextsFile())
	if err != nil {
		return nil
	}
	own := pidNamespace()
	var uuids []string
	for _, d := range devices {
		if slices.ContainsFunc(sizes, func(s contexts.Size) bool {
			return s.UUID == d.UUID && s.How == contexts.ByProcess && s.PIDNamespace == own
		}) {
			uuids = append(uuids, d.UUID)
		}
	}
	return uuids
}

// OwnLibraries returns the directory of the interposer that runs are held by.
func OwnLibraries() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	return FindLibraries(LibraryDirs(self, os.Getenv))
}
