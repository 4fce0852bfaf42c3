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

// runner measures points, one after the other.
type runner struct {
	launcher launcher
	profile  profile
	fill     string // the program
	// newMachine makes a fresh machine in an empty directory.
	newMachine func(dir string) (machine, error)
	temp       string // each point has a directory in it
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

// close leaves the directory to the end of all: vgpuctl is tidying up there.
func (s setting) close() error { return s.machine.close() }

// attempts is how often a point is tried whose processes are late.
const attempts = 5

// errHung: the programs of a point did not end in time.
var errHung = errors.New("programs hang")

// run measures one point. One whose programs hang, or cannot even start, is broken.
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
	time.Sleep(2 * s.pause()) // the watch looks once more
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

// fillAll lets all processes fill. In any case, the caller ends the crowd.
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

// peakOf is the most that was held. With one process that held anything, it is
// the peak that the judge recorded; with several, the peaks need not have been
// at the same time, and what was sampled counts.
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

// watcher looks again and again at what is held.
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

// stop ends the watch and returns the most that was seen.
func (w *watcher) stop() (uint64, error) {
	close(w.done)
	<-w.ended
	return w.most, w.err
}
