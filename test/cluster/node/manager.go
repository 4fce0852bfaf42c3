// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stopPatience is the time that a component may take to end before the manager kills the component.
const stopPatience = 10 * time.Second

// probeInterval is the interval between probes of a starting component.
const probeInterval = 100 * time.Millisecond

// restartPause is the time between a component's end and its restart.
const restartPause = time.Second

// A manager starts and stops the components and reaps dead processes. No other code in its process
// waits for children, because containers' shims also become its children when their parents end.
type manager struct {
	stateDir string
	order    []string

	mu         sync.Mutex
	changed    *sync.Cond
	components map[string]*component
}

// A component is a component of the manager. The manager's lock guards the component.
type component struct {
	spec     Component
	status   Status
	stopping bool
}

func newManager(s Spec) *manager {
	m := &manager{stateDir: s.StateDir, components: map[string]*component{}}
	m.changed = sync.NewCond(&m.mu)
	for _, c := range s.Components {
		m.order = append(m.order, c.Name)
		m.components[c.Name] = &component{spec: c, status: Status{Name: c.Name, State: Waiting, Since: time.Now()}}
	}
	return m
}

// startAll starts every component as soon as its predecessors are ready.
func (m *manager) startAll() {
	for _, name := range m.order {
		go func() {
			if !m.await(name) {
				return
			}
			if err := m.start(name); err != nil {
				log.Printf("error: %v", err)
			}
		}()
	}
}

// await blocks until all predecessors of a component are ready. await returns false if another
// caller started or stopped the component meanwhile.
func (m *manager) await(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.components[name]
	for {
		if c.status.State != Waiting {
			return false
		}
		if m.allReady(c.spec.After) {
			return true
		}
		m.changed.Wait()
	}
}

func (m *manager) allReady(names []string) bool {
	for _, n := range names {
		if c := m.components[n]; c == nil || c.status.State != Ready {
			return false
		}
	}
	return true
}

// start starts a component that does not run.
func (m *manager) start(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, err := m.find(name)
	if err != nil {
		return err
	}
	if c.status.Pid != 0 {
		return fmt.Errorf("%s runs already, as process %d", name, c.status.Pid)
	}
	program, err := exec.LookPath(c.spec.Args[0])
	if err != nil {
		m.set(c, Exited, 0, err.Error())
		return fmt.Errorf("start %s: %w", name, err)
	}
	out, err := openLog(m.stateDir, name)
	if err != nil {
		return err
	}
	defer out.Close()
	// start holds the lock until the pid is recorded, so that the reaper finds the pid.
	process, err := os.StartProcess(program, c.spec.Args, &os.ProcAttr{
		Dir:   "/",
		Env:   nodeEnvironment(),
		Files: []*os.File{nil, out, out},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		m.set(c, Exited, 0, err.Error())
		return fmt.Errorf("start %s: %w", name, err)
	}
	pid := process.Pid
	_ = process.Release()
	c.stopping = false
	m.set(c, Starting, pid, "")
	go m.watchStart(c, pid)
	return nil
}

// watchStart records when a started component serves.
func (m *manager) watchStart(c *component, pid int) {
	for {
		err := c.spec.Ready.check()
		m.mu.Lock()
		if c.status.Pid != pid {
			m.mu.Unlock()
			return
		}
		if err == nil {
			m.set(c, Ready, pid, "")
			m.mu.Unlock()
			return
		}
		c.status.Detail = err.Error()
		m.mu.Unlock()
		time.Sleep(probeInterval)
	}
}

// stop sends SIGTERM to a component, and kills the component if it does not end.
func (m *manager) stop(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, err := m.find(name)
	if err != nil {
		return err
	}
	if c.status.Pid == 0 {
		m.set(c, Stopped, 0, "")
		return nil
	}
	c.stopping = true
	pid := c.status.Pid
	if err := unix.Kill(pid, unix.SIGTERM); err != nil {
		return fmt.Errorf("stop %s: %w", name, err)
	}
	kill := time.AfterFunc(stopPatience, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if c.status.Pid == pid {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	})
	defer kill.Stop()
	for c.status.Pid == pid {
		m.changed.Wait()
	}
	return nil
}

// signal sends a signal to a component. The component's status shows the end.
func (m *manager) signal(name string, sig syscall.Signal) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, err := m.find(name)
	if err != nil {
		return err
	}
	if c.status.Pid == 0 {
		return fmt.Errorf("%s does not run", name)
	}
	if err := unix.Kill(c.status.Pid, sig); err != nil {
		return fmt.Errorf("signal %s: %w", name, err)
	}
	return nil
}

// statuses returns all components in their order.
func (m *manager) statuses() []Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]Status, 0, len(m.order))
	for _, name := range m.order {
		all = append(all, m.components[name].status)
	}
	return all
}

// reap waits for dead children and never returns.
func (m *manager) reap() {
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	for ; ; <-children {
		for m.reapOne() {
		}
	}
}

func (m *manager) reapOne() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ws unix.WaitStatus
	pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
	if errors.Is(err, unix.EINTR) {
		return true
	}
	if err != nil || pid <= 0 {
		return false
	}
	for _, c := range m.components {
		if c.status.Pid == pid {
			m.ended(c, ws)
		}
	}
	return true
}

func (m *manager) ended(c *component, ws unix.WaitStatus) {
	detail := fmt.Sprintf("exit status %d", ws.ExitStatus())
	if ws.Signaled() {
		detail = "signal: " + unix.SignalName(ws.Signal())
	}
	state := Exited
	if c.stopping {
		state = Stopped
	}
	log.Printf("%s (process %d) ended: %s", c.spec.Name, c.status.Pid, detail)
	m.set(c, state, 0, detail)
	if c.spec.Restart && ws.Exited() && !c.stopping {
		time.AfterFunc(restartPause, func() { m.restart(c) })
	}
}

// restart starts a component that has ended, unless another caller has started it.
func (m *manager) restart(c *component) {
	m.mu.Lock()
	state := c.status.State
	m.mu.Unlock()
	if state != Exited {
		return
	}
	if err := m.start(c.spec.Name); err != nil {
		log.Printf("error: %v", err)
	}
}

func (m *manager) find(name string) (*component, error) {
	c := m.components[name]
	if c == nil {
		return nil, fmt.Errorf("no component is called %q; there are %v", name, m.order)
	}
	return c, nil
}

func (m *manager) set(c *component, state State, pid int, detail string) {
	c.status.State, c.status.Pid, c.status.Detail, c.status.Since = state, pid, detail, time.Now()
	m.changed.Broadcast()
}
