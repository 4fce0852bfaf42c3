// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"sync"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/registry"
)

const (
	// commandPatience bounds the wait for all command lines of a query.
	commandPatience = 100 * time.Millisecond
	// mostReading bounds the command lines that are read at a time. The answer lists further
	// processes by name, and the next query reads their command lines.
	mostReading = 256
)

// identity identifies a process across queries.
type identity struct {
	pid     int
	started uint64
}

// commands reads the command lines of processes. To read a command line, the kernel accesses the
// process's memory, which blocks while the process hangs in a driver. A hanging process costs a
// thread, and the answer lists the process by its name.
type commands struct {
	read func(registry.Process) (string, error)

	mu      sync.Mutex
	known   map[identity]*command
	reading int // the number of reads in progress
}

// command is a command line that is being read until done is closed.
type command struct {
	done chan struct{}
	line string
}

// of returns the command lines of processes by pid, and drops all others.
func (c *commands) of(processes map[int]registry.Process) map[int]string {
	reading := make(map[int]*command, len(processes))
	c.mu.Lock()
	known := make(map[identity]*command, len(processes))
	for pid, process := range processes {
		id := identity{pid, process.Started}
		line, ok := c.known[id]
		if !ok && c.reading >= mostReading {
			continue
		}
		if !ok {
			line = c.start(process)
		}
		known[id], reading[pid] = line, line
	}
	c.known = known
	c.mu.Unlock()

	late := time.After(commandPatience)
	lines := make(map[int]string, len(processes))
	for pid, process := range processes {
		lines[pid] = process.Name
	}
	for pid, line := range reading {
		select {
		case <-line.done:
			lines[pid] = line.line
			continue
		default:
		}
		select {
		case <-line.done:
			lines[pid] = line.line
		case <-late:
			late = closed
		}
	}
	return lines
}

// closed is a channel for reads whose time has run out.
var closed = func() <-chan time.Time {
	c := make(chan time.Time)
	close(c)
	return c
}()

// start reads a command line. The caller holds c.mu.
func (c *commands) start(process registry.Process) *command {
	c.reading++
	line := &command{done: make(chan struct{}), line: process.Name}
	go func() {
		defer close(line.done)
		if read, err := c.read(process); err == nil {
			line.line = read
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.reading--
	}()
	return line
}
