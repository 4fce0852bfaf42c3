// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/test/cluster"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/node"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// target is a program that the test kills, stops and slows.
type target struct {
	name string
	// pids returns the target's present processes on this machine.
	pids func(*world) []int
	// component is the target's name as a component of the node, or "" if kubelet restarts the
	// target.
	component string
}

var (
	agent   = target{name: "agent", pids: ours("/usr/local/nri-vgpu/bin/nri-vgpu", "nri-vgpu")}
	patcher = target{name: "patcher", pids: ours("extended-resource-patcher")}
	nodes   = []target{
		{name: "containerd", pids: component(cluster.Containerd), component: cluster.Containerd},
		{name: "kubelet", pids: component(cluster.Kubelet), component: cluster.Kubelet},
		{name: "API server", pids: component(cluster.APIServer), component: cluster.APIServer},
	}
)

// ours returns the processes of the node's pods whose program has one of these names, without the
// init container.
func ours(programs ...string) func(*world) []int {
	return func(*world) []int {
		// The pattern is valid, and an invalid pattern is the only error.
		dirs, _ := filepath.Glob("/proc/[0-9]*")
		var pids []int
		for _, dir := range dirs {
			cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
			if err != nil || len(cmdline) == 0 {
				continue
			}
			args := strings.Split(string(cmdline), "\x00")
			named := slices.Contains(programs, args[0]) || slices.Contains(programs, filepath.Base(args[0]))
			if !named || slices.Contains(args, "install") {
				continue
			}
			pid, err := strconv.Atoi(filepath.Base(dir))
			if _, _, inNode := containerOf(pid); err == nil && inNode {
				pids = append(pids, pid)
			}
		}
		return pids
	}
}

func component(name string) func(*world) []int {
	return func(w *world) []int {
		pid, err := w.Cluster.Pid(context.Background(), name)
		if err != nil {
			return nil
		}
		return []int{pid}
	}
}

// signal sends a signal to all processes of a target. signal reports whether the target had
// processes.
func (w *world) signal(t target, sig syscall.Signal) bool {
	sent := false
	for _, pid := range t.pids(w) {
		err := syscall.Kill(pid, sig)
		if err != nil && !errors.Is(err, syscall.ESRCH) {
			w.Errorf("signal %s: %v", t.name, err)
		}
		sent = sent || err == nil
	}
	return sent
}

// kill kills a target, and starts the target again after a time if no other program starts it.
func (w *world) kill(ctx context.Context, t target, away time.Duration) {
	if !w.signal(t, syscall.SIGKILL) {
		return
	}
	w.count.add("kills", t.name)
	w.log("killed %s", t.name)
	if t.component == "" {
		return
	}
	if err := w.awaitEnd(t); err != nil {
		w.broken("recovered", "%s does not end: %v", t.name, err)
	}
	loop.Sleep(ctx, away)
	if err := w.start(t); err != nil {
		w.broken("recovered", "%s does not come back: %v", t.name, err)
	}
}

// awaitEnd waits until the node's supervisor knows that a component has ended.
func (w *world) awaitEnd(t target) error {
	return eventually.Check(context.Background(), patience, func() error {
		state, err := w.state(t)
		if err == nil && state != node.Exited {
			err = fmt.Errorf("the component is %s", state)
		}
		return err
	})
}

func (w *world) state(t target) (state node.State, err error) {
	err = call(func(ctx context.Context) error {
		all, err := w.Cluster.Components(ctx)
		for _, one := range all {
			if one.Name == t.component {
				state = one.State
			}
		}
		return err
	})
	return state, err
}

// start starts a component, unless it runs.
func (w *world) start(t target) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return eventually.Check(ctx, patience, func() error {
		if state, err := w.state(t); err != nil || state == node.Ready {
			return err
		}
		return w.Cluster.Start(ctx, t.component)
	})
}

// halt stops a target for a time.
func (w *world) halt(ctx context.Context, t target, length time.Duration) {
	pids := t.pids(w)
	if len(pids) == 0 {
		return
	}
	w.count.add("stops", t.name)
	w.log("stopping %s for %v", t.name, length.Round(time.Millisecond))
	signalAll(pids, syscall.SIGSTOP)
	loop.Sleep(ctx, length)
	signalAll(pids, syscall.SIGCONT)
}

// slow makes a target run for a tenth of the time.
func (w *world) slow(ctx context.Context, t target, length time.Duration) {
	pids := t.pids(w)
	if len(pids) == 0 {
		return
	}
	w.count.add("slowed", t.name)
	w.log("slowing %s for %v", t.name, length.Round(time.Millisecond))
	const slice = 10 * time.Millisecond
	for end := time.Now().Add(length); time.Now().Before(end) && loop.Sleep(ctx, slice); {
		signalAll(pids, syscall.SIGSTOP)
		loop.Sleep(ctx, 9*slice)
		signalAll(pids, syscall.SIGCONT)
	}
}

// signalAll sends a signal to processes that may have ended.
func signalAll(pids []int, sig syscall.Signal) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, sig)
	}
}
