// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"
)

// samplePeriod is the time between two samples of GPU times.
const samplePeriod = 25 * time.Millisecond

// simulated creates a machine with a simulated GPU for each run. The oracle
// reports GPU times.
type simulated struct {
	host *host
	temp string // on a file system in memory, if one exists
	is   profile
}

func (*simulated) kind() string { return "simulated" }

func (s *simulated) gpusim() string { return filepath.Join(s.host.build, "gpusim", "gpusim") }

// create creates a GPU in a directory.
func (s *simulated) create(dir string) error {
	args := []string{"create", "--gpus", "1", "--memory", "64GiB"}
	if s.is.files != "" {
		args = append(args, "--profile", s.is.files)
	}
	if output, err := exec.Command(s.gpusim(), append(args, dir)...).CombinedOutput(); err != nil {
		return fmt.Errorf("create a simulated GPU: %w: %s", err, output)
	}
	s.host.env = []string{
		"GPUSIM_STATE=" + filepath.Join(dir, "state"),
		"LD_LIBRARY_PATH=" + filepath.Join(s.host.build, "gpusim"),
	}
	return nil
}

func (s *simulated) run(ctx context.Context, loads []load, span span) (outcomes []outcome, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch, err := s.watch(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, watch.stop()) }()
	still := watchStalls(ctx)
	defer still.stop()
	for _, l := range loads {
		t, err := s.host.startTenant(ctx, l, "--duration", seconds(span.total()+2*startTimeout))
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, t.stop()) }()
		watch.add(t)
	}
	from, err := watch.follow(span)
	if err != nil {
		return nil, err
	}
	stood := still.stop()
	for i, series := range watch.series {
		o := judge(series, from, from+span.measure, stood)
		o.metered = series.between(from, from+span.measure).charged(loads[i].cycle())
		outcomes = append(outcomes, o)
	}
	return outcomes, nil
}

// judge computes a container's outcome from its series. from and to bound the
// measurement.
func judge(s series, from, to time.Duration, stood stalls) outcome {
	measured := s.between(from, to)
	o := outcome{share: measured.share(), rate: measured.rate(), firstSecond: math.NaN()}
	o.windows, o.longestWindow = measured.windows(windowLength)
	disturb(o.windows, stood)
	o.stalled = 100 * stood.within(from, to).Seconds() / (to - from).Seconds() / float64(runtime.NumCPU())
	if began, ok := s.began(); ok {
		o.firstSecond = 100 * s.busyAt(began+time.Second).Seconds()
	}
	return o
}

func (s *simulated) latency(ctx context.Context, periodic load, neighbour *load, span span) (result Latency, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch, err := s.watch(ctx)
	if err != nil {
		return Latency{}, err
	}
	defer func() { err = errors.Join(err, watch.stop()) }()
	if neighbour != nil {
		t, err := s.host.startTenant(ctx, *neighbour, "--duration", seconds(periodicWarmup+span.total()+2*startTimeout))
		if err != nil {
			return Latency{}, err
		}
		defer func() { err = errors.Join(err, t.stop()) }()
		watch.add(t)
		if _, err := watch.follow(spanOfWarmup(span)); err != nil {
			return Latency{}, err
		}
	}
	p, err := startPeriodic(ctx, s.host, periodic, span.measure)
	if err != nil {
		return Latency{}, err
	}
	began := watch.last
	if err := watch.until(p.done); err != nil {
		return Latency{}, err
	}
	output, err := p.wait()
	if err != nil {
		return Latency{}, err
	}
	if result, err = parseLatency(output); err == nil && neighbour != nil {
		beside := watch.series[0].between(began, watch.last)
		result.NeighbourPercent, result.NeighbourMetered = known(beside.share()), known(beside.charged(neighbour.cycle()))
	}
	return result, err
}

// spanOfWarmup returns a span that only starts a neighbour.
func spanOfWarmup(s span) span { return span{warmup: s.warmup} }

// watch is a GPU and the output of its oracle. The oracle repeatedly advances the
// timeline to the present and prints all GPU times of that instant.
type watch struct {
	dir     string
	command *exec.Cmd
	lines   *bufio.Reader
	tenants []tenant
	series  []series
	last    time.Duration // time of the last sample
}

// watch creates a GPU and starts its oracle.
func (s *simulated) watch(ctx context.Context) (*watch, error) {
	dir, err := os.MkdirTemp(s.temp, "gpu-")
	if err != nil {
		return nil, err
	}
	w := &watch{dir: dir}
	if err := s.create(dir); err != nil {
		return nil, errors.Join(err, w.stop())
	}
	command := exec.CommandContext(ctx, s.gpusim(), "oracle", "--json", "--watch", "--interval", seconds(samplePeriod), dir)
	output, err := command.StdoutPipe()
	if err != nil {
		return nil, errors.Join(err, w.stop())
	}
	command.Stderr = os.Stderr
	if err := command.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start the oracle: %w", err), w.stop())
	}
	w.command, w.lines = command, bufio.NewReaderSize(output, 1<<20)
	return w, nil
}

// stop ends the oracle and removes the GPU.
func (w *watch) stop() error {
	if w.command != nil {
		_ = w.command.Process.Kill() // the process may have ended
		_ = w.command.Wait()         // ended by the signal
	}
	return os.RemoveAll(w.dir)
}

func (w *watch) add(t tenant) {
	w.tenants = append(w.tenants, t)
	w.series = append(w.series, nil)
}

// snapshot is a line of the oracle.
type snapshot struct {
	Time      uint64 `json:"time_ns"`
	Processes []struct {
		Pid  int `json:"pid"`
		GPUs []struct {
			Time     uint64 `json:"gpu_time_ns"`
			Launches uint64 `json:"launches"`
		} `json:"gpus"`
	} `json:"processes"`
}

// of returns the sum over a container's processes.
func (s snapshot) of(t tenant) sample {
	sum := sample{at: time.Duration(s.Time)}
	for _, process := range s.Processes {
		for _, p := range t.processes {
			if process.Pid != p.command.Process.Pid {
				continue
			}
			for _, gpu := range process.GPUs {
				sum.busy += time.Duration(gpu.Time)
				sum.launches += float64(gpu.Launches)
			}
		}
	}
	return sum
}

// next appends a sample to each series.
func (w *watch) next() error {
	line, err := w.lines.ReadBytes('\n')
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = errEarly
		}
		return fmt.Errorf("read the oracle: %w", err)
	}
	var s snapshot
	if err := json.Unmarshal(line, &s); err != nil {
		return fmt.Errorf("read the oracle: %w", err)
	}
	w.last = time.Duration(s.Time)
	for i, t := range w.tenants {
		if err := t.ended(); err != nil {
			return err
		}
		sum := s.of(t)
		// The usage page exists before the first work starts.
		if sum.busy > 0 {
			if sum.metered, err = t.metered(); err != nil {
				return err
			}
		}
		w.series[i] = append(w.series[i], sum)
	}
	return nil
}

// follow samples until every container has worked for the whole span. follow
// returns the start of the measurement.
func (w *watch) follow(s span) (time.Duration, error) {
	deadline := time.Now().Add(startTimeout)
	for {
		if err := w.next(); err != nil {
			return 0, err
		}
		began, all := w.began()
		if !all && time.Now().After(deadline) {
			return 0, fmt.Errorf("no work on the GPU within %s", startTimeout)
		}
		// An additional sample makes the end lie between two samples.
		if all && w.last > began+s.total()+samplePeriod {
			return began + s.warmup, nil
		}
	}
}

// began returns the time at which the last container started to work.
func (w *watch) began() (latest time.Duration, all bool) {
	for _, s := range w.series {
		began, ok := s.began()
		if !ok {
			return 0, false
		}
		latest = max(latest, began)
	}
	return latest, true
}

// until samples until a channel is closed.
func (w *watch) until(done <-chan struct{}) error {
	for {
		select {
		case <-done:
			return nil
		default:
		}
		if err := w.next(); err != nil {
			return err
		}
	}
}
