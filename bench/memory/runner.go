// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// patience bounds one point, whose programs may hang.
const patience = 2 * time.Minute

// runner measures points one after another.
type runner struct {
	launcher launcher
	profile  profile
	fill     string // path of the program
	// newMachine creates a machine in an empty directory.
	newMachine func(dir string) (machine, error)
	temp       string // parent of the points' directories
	native     sizes
	absent     []Absent // ways that the driver does not have
	count      int
}

// setting is the machine and the directory of one point.
type setting struct {
	machine
	dir string
}

func (r *runner) prepare() (setting, error) {
	r.count++
	dir := filepath.Join(r.temp, fmt.Sprint(r.count))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return setting{}, err
	}
	m, err := r.newMachine(filepath.Join(dir, "gpu"))
	if err != nil {
		return setting{}, errors.Join(err, os.RemoveAll(dir))
	}
	return setting{m, dir}, nil
}

// close closes the machine. The directory stays until the end of the run, because vgpuctl still
// cleans up in the directory.
func (s setting) close() error { return s.machine.close() }

// attempts is the greatest number of attempts at a point whose processes are late.
const attempts = 5

// errHung reports that the programs of a point did not end in time.
var errHung = errors.New("programs hang")

// run measures one point. A point whose programs hang or cannot start is broken.
func (r *runner) run(ctx context.Context, what step) (Point, error) {
	for try := 1; ; try++ {
		p, err := r.try(ctx, what)
		if errors.Is(err, errLate) && try < attempts {
			continue
		}
		if errors.Is(err, errLate) || errors.Is(err, errHung) {
			p = Point{Way: what.way, Limit: what.limit, Error: -1, Processes: len(what.tasks), Broken: err.Error()}
			err = ctx.Err()
		}
		p.Profile = r.profile.name
		return p, err
	}
}

func (r *runner) try(ctx context.Context, what step) (_ Point, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, err := r.prepare()
	if err != nil {
		return Point{}, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	watched := watch(s.machine)
	c, err := r.fillAll(ctx, s, r.launcher, what)
	defer c.end()
	time.Sleep(2 * s.pause()) // the watch samples once more
	sampled, watchErr := watched.stop()
	if ctx.Err() != nil {
		return Point{}, fmt.Errorf("%w: %s at %d bytes is not done after %s", errHung, what.way, what.limit, patience)
	}
	held, heldErr := s.held()
	if err = errors.Join(err, watchErr, heldErr); err != nil {
		return Point{}, err
	}
	peak, exact, err := peakOf(s.machine, sampled)
	if err != nil {
		return Point{}, err
	}
	point := judge(what.way, what.limit, physical{peak, held}, c.fills, r.native)
	point.PeakExact = exact
	if len(c.fills) > 1 || c.fills[0].Message != "" {
		point.Fills = c.fills
	}
	return point, nil
}

// fillAll starts all processes and waits until all have filled. The caller must end the crowd, even
// after an error.
func (r *runner) fillAll(ctx context.Context, s setting, l launcher, what step) (*crowd, error) {
	c := &crowd{}
	for _, t := range what.tasks {
		argv, env := l.command(what.limit, s.dir, r.fill, t.args())
		env = append(append(without(os.Environ()), s.env()...), env...)
		p, err := start(ctx, t, argv, env)
		if err != nil {
			return c, err
		}
		s.judges(p.cmd.Process.Pid)
		c.processes = append(c.processes, p)
	}
	if len(c.processes) > 1 {
		if err := c.lineUp(s, r.native.context); err != nil {
			return c, err
		}
	}
	for i, p := range c.processes {
		if i == len(c.processes)-1 {
			p.signal(syscall.SIGCONT)
		}
		f, err := p.result()
		if err != nil {
			return c, err
		}
		c.fills = append(c.fills, f)
	}
	return c, nil
}

// peakOf returns the greatest memory that processes held. If a single process held memory, peakOf
// returns the peak that the judge recorded. With several processes, whose peaks may differ in time,
// peakOf returns the largest sample.
func peakOf(m machine, sampled uint64) (peak uint64, exact bool, err error) {
	peaks, err := m.peaks()
	if err != nil {
		return 0, false, err
	}
	holders := 0
	peak = sampled
	for _, one := range peaks {
		if one > 0 {
			holders++
			peak = max(peak, one)
		}
	}
	return peak, holders == 1, nil
}

// watcher samples the held memory.
type watcher struct {
	done, ended chan struct{}
	most        uint64
	err         error
}

func watch(m machine) *watcher {
	w := &watcher{done: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(w.ended)
		for w.err == nil {
			var held uint64
			held, w.err = m.held()
			w.most = max(w.most, held)
			select {
			case <-w.done:
				return
			case <-time.After(m.pause()):
			}
		}
	}()
	return w
}

// stop ends the watch and returns the largest sample.
func (w *watcher) stop() (uint64, error) {
	close(w.done)
	<-w.ended
	return w.most, w.err
}
