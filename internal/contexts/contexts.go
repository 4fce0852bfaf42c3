// SPDX-License-Identifier: Apache-2.0

// Package contexts measures how large a CUDA context is on each GPU. The size depends on GPU and
// driver, and ranges from 107 MiB to more than 600 MiB. A child process makes a context, and NVML
// on the host lists the child's memory.
package contexts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

const (
	// attemptTime bounds one measurement: a cold driver takes seconds.
	attemptTime = 20 * time.Second
	// retryEvery is the interval at which Run repeats failed measurements.
	retryEvery = time.Minute
	// rounds bounds the attempts until two rounds agree, if only the use of the whole GPU is known.
	rounds = 5
	// same is the largest difference between two measurements that agree.
	same = 2 << 20
	// least and most bound the plausible sizes of a context.
	least, most = 1 << 20, 16 << 30
)

// These constants are the ways to measure.
const (
	// ByProcess means that NVML listed the child process's memory.
	ByProcess = "process"
	// ByDevice means that NVML did not list the child process's memory, and the use of the whole
	// GPU rose by the size.
	ByDevice = "device"
)

// Driver is the interface to NVML. A call of a Driver may hang.
type Driver interface {
	gpu.Holdings
	// Used returns the used bytes of a GPU, by all processes.
	Used(uuid string) (uint64, error)
}

// Maker makes contexts.
type Maker interface {
	// Make makes a context on a GPU in its own process, and returns once the context exists.
	Make(ctx context.Context, uuid string) (Made, error)
}

// Made is a context in its own process.
type Made interface {
	PID() int
	// End ends the process, and returns once it has ended.
	End(ctx context.Context) error
}

// Size is the measured size of a context.
type Size struct {
	UUID string `json:"uuid"`
	// Driver is the driver's version at the measurement.
	Driver string `json:"driver"`
	Bytes  uint64 `json:"bytes"`
	// How is ByProcess or ByDevice.
	How string `json:"how"`
	// PIDNamespace is the pid namespace whose pids NVML lists, 0 if unknown.
	PIDNamespace uint64    `json:"pidNamespace,omitempty"`
	Measured     time.Time `json:"measured"`
}

// Measurer measures contexts.
type Measurer struct {
	Driver Driver
	Maker  Maker

	calls gpu.Worker
}

// Measure makes a context on a GPU and returns its size. Measure immediately accepts a size that
// NVML lists for the process. Measure accepts the rise of the whole GPU's use once two rounds
// agree.
func (m *Measurer) Measure(ctx context.Context, uuid string) (Size, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	var last uint64
	for range rounds {
		bytes, how, err := m.once(ctx, uuid)
		size := Size{UUID: uuid, Bytes: bytes, How: how, Measured: time.Now().UTC()}
		switch {
		case err != nil:
			return Size{}, err
		case how == ByProcess && !isContext(bytes):
			return Size{}, fmt.Errorf("measure a context on %s: the driver reports a size of %d bytes", uuid, bytes)
		case how == ByProcess:
			return size, nil
		case isContext(bytes) && isContext(last) && max(bytes, last)-min(bytes, last) <= same:
			size.Bytes = max(bytes, last)
			return size, nil
		}
		last = bytes
	}
	return Size{}, fmt.Errorf("measure a context on %s: NVML does not report the memory of processes, and no two measurements of the whole GPU agree: other processes use it", uuid)
}

// isContext reports whether a context can be of this size.
func isContext(bytes uint64) bool { return bytes >= least && bytes <= most }

// once makes a context and returns its size as the driver reports it.
func (m *Measurer) once(ctx context.Context, uuid string) (bytes uint64, how string, err error) {
	before, err := m.used(ctx, uuid)
	if err != nil {
		return 0, "", fmt.Errorf("measure a context on %s: %w", uuid, err)
	}
	made, err := m.Maker.Make(ctx, uuid)
	if err != nil {
		return 0, "", fmt.Errorf("make a context on %s to measure it: %w", uuid, err)
	}
	held, heldErr := gpu.Do(ctx, &m.calls, func() (gpu.HeldBytes, error) { return m.Driver.Held(uuid) })
	after, afterErr := m.used(ctx, uuid)
	if err := made.End(ctx); err != nil {
		return 0, "", fmt.Errorf("end the process that made a context on %s: %w", uuid, err)
	}
	if own := held[made.PID()]; heldErr == nil && own > 0 {
		return own, ByProcess, nil
	}
	if afterErr != nil {
		return 0, "", fmt.Errorf("measure a context on %s: %w", uuid, afterErr)
	}
	return after - min(before, after), ByDevice, nil
}

func (m *Measurer) used(ctx context.Context, uuid string) (uint64, error) {
	used, err := gpu.Do(ctx, &m.calls, func() (uint64, error) { return m.Driver.Used(uuid) })
	if ctx.Err() != nil {
		return 0, errors.New("NVML does not answer")
	}
	return used, err
}

// Options configures Sizes.
type Options struct {
	// Override is the size that the configuration sets; 0 requests a measurement.
	Override uint64
	Measurer *Measurer
	// Version returns the driver's version.
	Version func() (string, error)
	// File is the path of the stored sizes.
	File string
	// GPUs returns the GPUs of the last query.
	GPUs func() []gpu.GPU
	// Room reports whether enough unallocated memory of a GPU is free to make a context.
	Room func(uuid string) bool
	Log  *slog.Logger
}

// Sizes holds the sizes of contexts on the node's GPUs.
type Sizes struct {
	Options
	// turn is held during a measurement.
	turn chan struct{}

	mu      sync.Mutex
	sizes   map[string]Size  // by UUID
	tried   map[string]error // the last attempt's, by UUID
	late    map[string]bool  // the GPUs that Prepare had no time for
	version string           // the driver's, "" until it is known
	counts  map[string]uint64
}

// New returns empty Sizes. Prepare and Run measure the sizes.
func New(opts Options) *Sizes {
	return &Sizes{
		Options: opts, turn: make(chan struct{}, 1),
		sizes: map[string]Size{}, tried: map[string]error{}, late: map[string]bool{}, counts: map[string]uint64{},
	}
}

// Of returns the size of a context on a GPU, 0 if unknown. Of never waits.
func (s *Sizes) Of(uuid string) uint64 {
	if s.Override > 0 {
		return s.Override
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sizes[uuid].Bytes
}

// Tried reports whether the size of a context is known, or a measurement has failed. Other users of
// the GPU need not wait for a measurement if Tried returns true.
func (s *Sizes) Tried(uuid string) bool {
	if s.Override > 0 {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, tried := s.tried[uuid]
	return tried || s.sizes[uuid].Bytes > 0
}

// Prepare measures, one by one, the GPUs that were never tried, until ctx ends. Run measures the
// rest. A caller must call Prepare before placing containers.
func (s *Sizes) Prepare(ctx context.Context, gpus []gpu.GPU) {
	fresh := func(uuid string) bool { return !s.Tried(uuid) && !s.isLate(uuid) }
	if !slices.ContainsFunc(gpus, func(g gpu.GPU) bool { return g.Healthy && fresh(g.UUID) }) {
		return
	}
	s.measure(ctx, gpus, fresh)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range gpus {
		s.late[g.UUID] = s.late[g.UUID] || g.Healthy
	}
}

// isLate reports whether Prepare had no time for a GPU. Prepare does not wait for a late GPU again.
func (s *Sizes) isLate(uuid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.late[uuid]
}

// Run measures the GPUs whose size is not known, every minute until ctx ends.
func (s *Sizes) Run(ctx context.Context) {
	ticker := time.NewTicker(retryEvery)
	defer ticker.Stop()
	for {
		s.measure(ctx, s.GPUs(), func(uuid string) bool { return s.Of(uuid) == 0 })
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// measure measures the healthy GPUs that wanted selects.
func (s *Sizes) measure(ctx context.Context, gpus []gpu.GPU, wanted func(uuid string) bool) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return
	}
	for _, g := range gpus {
		if !g.Healthy || !wanted(g.UUID) || ctx.Err() != nil {
			continue
		}
		if err := s.recall(ctx); err != nil {
			s.failed(g.UUID, err)
			return // the stored sizes depend on the driver's version
		}
		if s.Of(g.UUID) == 0 {
			s.attempt(ctx, g.UUID)
		}
	}
}

// recall reads the driver's version and loads the sizes that were measured with it.
func (s *Sizes) recall(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	version, err := gpu.Do(ctx, &s.Measurer.calls, s.Version)
	if err != nil {
		return fmt.Errorf("read the driver's version: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if version == s.version {
		return nil
	}
	s.version = version
	kept, err := ReadFile(s.File)
	if err != nil {
		s.Log.Warn("failed to read the sizes of CUDA contexts; measuring them again", "error", err)
	}
	clear(s.sizes)
	for _, size := range kept {
		if size.Driver == version {
			s.sizes[size.UUID] = size
		}
	}
	return nil
}

var errNoRoom = errors.New("containers hold all of the GPU's memory: the agent measures when memory is free")

// attempt measures one GPU and records the result.
func (s *Sizes) attempt(ctx context.Context, uuid string) {
	if s.Room != nil && !s.Room(uuid) {
		s.failed(uuid, errNoRoom)
		return
	}
	size, err := s.Measurer.Measure(ctx, uuid)
	if err != nil {
		if ctx.Err() == nil { // the caller has not given up
			s.failed(uuid, err)
		}
		return
	}
	s.mu.Lock()
	size.Driver = s.version
	s.sizes[uuid] = size
	delete(s.tried, uuid)
	s.counts[outcomeMeasured]++
	all := make([]Size, 0, len(s.sizes))
	for _, known := range s.sizes {
		all = append(all, known)
	}
	s.mu.Unlock()
	s.Log.Info("measured a CUDA context", "gpu", uuid, "driver", size.Driver, "bytes", size.Bytes, "by", size.How)
	if err := WriteFile(s.File, all); err != nil {
		s.Log.Error("failed to write the sizes of CUDA contexts; the next agent measures them again", "error", err)
	}
}

// failed records the reason why a GPU could not be measured, and logs each new reason once.
func (s *Sizes) failed(uuid string, err error) {
	s.mu.Lock()
	before := s.tried[uuid]
	s.tried[uuid] = err
	s.counts[outcomeFailed]++
	s.mu.Unlock()
	if before == nil || before.Error() != err.Error() {
		s.Log.Warn("failed to measure a CUDA context; charging an upper bound and retrying",
			"gpu", uuid, "error", err)
	}
}
