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
	fill     string // the program
	// newMachine makes a fresh machine in an empty directory.
	newMachine func(dir string) (machine, error)
	temp       string // each point has a directory in it
	native     sizes
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

// run measures one point.
func (r *runner) run(ctx context.Context, what step) (_ Point, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, err := r.prepare()
	if err != nil {
		return Point{}, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	watched := watch(s.machine)
	fills, stop, err := fillAll(ctx, s, r.fill, r.launcher, what)
	defer stop()
	time.Sleep(2 * s.pause()) // the watch looks once more
	sampled, watchErr := watched.stop()
	if err = errors.Join(err, watchErr); err != nil {
		return Point{}, err
	}
	if ctx.Err() != nil {
		return Point{}, fmt.Errorf("%s at %d bytes: not done after %s", what.way, what.limit, patience)
	}
	peak, exact, err := peakOf(s.machine, sampled)
	if err != nil {
		return Point{}, err
	}
	point := judge(what.way, what.limit, peak, fills, r.native)
	point.PeakExact = exact
	if len(fills) > 1 || fills[0].Message != "" {
		point.Fills = fills
	}
	return point, nil
}

// fillAll lets all processes fill, and returns while they still hold what they
// got: stop kills them.
func fillAll(ctx context.Context, s setting, fill string, l launcher, what step) (fills []Fill, stop func(), err error) {
	var processes []*process
	stop = func() {
		for _, p := range processes {
			p.end()
		}
	}
	for _, t := range what.tasks {
		argv, env := l.command(what.limit, s.dir, fill, t.args())
		env = append(append(without(os.Environ()), s.env()...), env...)
		p, err := start(ctx, t, argv, env)
		if err != nil {
			return nil, stop, err
		}
		processes = append(processes, p)
	}
	if len(processes) > 1 {
		lineUp(processes)
	}
	for i, p := range processes {
		if i == len(processes)-1 {
			p.signal(syscall.SIGCONT)
		}
		f, err := p.result()
		if err != nil {
			return nil, stop, err
		}
		fills = append(fills, f)
	}
	return fills, stop, nil
}

// lineUp lets processes begin to fill at the same time, however long each took
// to start: it stops them during their delay, until the delay of all is over.
// The last stays stopped.
func lineUp(processes []*process) {
	time.Sleep(mixDelay / 2)
	for _, p := range processes {
		p.signal(syscall.SIGSTOP)
	}
	time.Sleep(mixDelay)
	for _, p := range processes[:len(processes)-1] {
		p.signal(syscall.SIGCONT)
	}
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
