package census

import (
	"sync"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/registry"
)

const (
	// commandPatience is how long command lines are waited for, all together.
	commandPatience = 100 * time.Millisecond
	// mostReading is how many command lines are read at a time. Further processes go by
	// their names, and are read at the next look.
	mostReading = 256
)

// identity names a process for ever.
type identity struct {
	pid     int
	started uint64
}

// commands are the command lines of processes. To read one the kernel has to look
// into the process's memory, which it may not be able to for as long as the
// process hangs in a driver: such a process costs a thread, and goes by its name.
type commands struct {
	read func(registry.Process) (string, error)

	mu      sync.Mutex
	known   map[identity]*command
	reading int // of them
}

// command is being read until it is done.
type command struct {
	done chan struct{}
	line string
}

// of gives the command lines of processes, by pid, and forgets all others.
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

// closed is for those who are waited for no longer.
var closed = func() <-chan time.Time {
	c := make(chan time.Time)
	close(c)
	return c
}()

// start reads a command line. c.mu is held.
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
