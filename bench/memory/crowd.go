// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// crowd contains the processes of a point.
type crowd struct {
	processes []*process
	fills     []Fill // in the same order
}

// end kills the processes, which hold their memory until end kills them.
func (c *crowd) end() {
	for _, p := range c.processes {
		p.end()
	}
}

// errLate reports that the machine was too busy for processes to start in time.
var errLate = errors.New("processes did not make their contexts in time")

// lineUp makes processes start to fill at the same time. When all processes have contexts, lineUp
// stops the processes during their delay. After the delay, lineUp continues all processes except
// the last process. Therefore the driver makes or refuses all contexts while no process holds other
// memory.
func (c *crowd) lineUp(m machine, context uint64) error {
	deadline := time.Now().Add(mixDelay * 3 / 4)
	for {
		ready, err := c.ready(m, context)
		if err != nil {
			return err
		}
		if ready {
			break
		}
		if time.Now().After(deadline) {
			return errLate
		}
		time.Sleep(10 * time.Millisecond)
	}
	for _, p := range c.processes {
		p.signal(syscall.SIGSTOP)
	}
	time.Sleep(mixDelay)
	for _, p := range c.processes[:len(c.processes)-1] {
		p.signal(syscall.SIGCONT)
	}
	return nil
}

// ready reports whether each process has a context and waits, or has given up.
// A process that is stopped before it waits may hold a lock of the driver.
func (c *crowd) ready(m machine, context uint64) (bool, error) {
	waiting := uint64(0)
	for _, p := range c.processes {
		switch {
		case p.done():
		case p.sleeps():
			waiting++
		default:
			return false, nil
		}
	}
	held, err := m.held()
	return held+context/2 > waiting*context, err
}

// sleeps reports whether the process is in fill's delay.
func (p *process) sleeps() bool {
	call, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", p.cmd.Process.Pid))
	return err == nil && strings.HasPrefix(string(call), fmt.Sprintf("%d ", unix.SYS_CLOCK_NANOSLEEP))
}
