// SPDX-License-Identifier: Apache-2.0

package local

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

	"github.com/nri-vgpu/nri-vgpu/internal/contexts"
	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/internal/registry"
	"github.com/nri-vgpu/nri-vgpu/internal/registry/held"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

const (
	// watcherFile is the lock file of a group's watcher.
	watcherFile = "watcher"
	// answeringFD is a pipe that a watcher closes once it answers queries.
	answeringFD = 3
	// watcherPatience bounds the wait for answeringFD. After watcherPatience, the run starts and
	// its processes use estimates.
	watcherPatience = time.Second
)

// watcherEnvironment returns the run's environment without the variables for the
// program. The other variables may lead to the driver's libraries.
func watcherEnvironment(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return name == "LD_PRELOAD" || name == pagesVariable
	})
}

// watch runs a watcher. A second watcher of the same group waits until the first has
// ended, and then takes over the group.
func (g Groups) watch(group string) error {
	answering := answeringPipe()
	path := filepath.Join(g.Dir(group), watcherFile)
	lock, err := lockFile(path, os.O_CREATE, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		answering.Close()
		lock, err = lockFile(path, os.O_CREATE, unix.LOCK_EX)
	}
	if err != nil {
		return nil // the group was removed
	}
	defer lock.Close()
	if !isFileAt(lock, path) {
		return nil // the group was removed, and a new group has another watcher
	}
	ctx, cancel := context.WithCancel(context.Background())
	var answers sync.WaitGroup
	defer answers.Wait()
	defer cancel()
	answers.Go(func() { g.answer(ctx, group, sync.OnceFunc(func() { answering.Close() })) })
	go g.lend(group) // until this process ends
	return g.RemoveWhenEmpty(group)
}

// answeringPipe returns the pipe on which vgpuctl run waits, or nil if no run waits.
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

// answer serves the socket on which a group's processes query the memory that they
// hold, until ctx ends. If NVML does not list processes by their process IDs, answer
// serves no queries, and their charges stay estimates.
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
		Path: paths.AgentSocket(g.Dir(group)), Registry: registry.New(), Proc: registry.HostProc,
		Log: slog.New(slog.DiscardHandler), Listening: answering,
		Holdings: held.Holdings{Looks: looks, GPUs: func(string) []string { return uuids }},
	}
	// NVML takes long to start. A process that asks before NVML has started would wait for its full
	// time-out.
	for _, uuid := range uuids {
		looks.Ask(uuid)
	}
	for ctx.Err() == nil {
		if !listening(ctx, server.Path) { // a server that already listens answers the queries
			_ = server.Serve(ctx)
		}
		loop.Sleep(ctx, time.Second)
		if _, err := os.Stat(page); err != nil {
			return // the group was removed; its directory must not be recreated
		}
	}
}

// listening reports whether a server accepts connections on a socket.
func listening(ctx context.Context, path string) bool {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unixpacket", path)
	if err == nil {
		conn.Close()
	}
	return err == nil
}

// listed returns the GPUs for which NVML lists processes by their IDs in this pid
// namespace, with the memory that they hold.
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

// OwnLibraries returns the directory of the interposer that runs use.
func OwnLibraries() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	return FindLibraries(LibraryDirs(self, os.Getenv))
}
