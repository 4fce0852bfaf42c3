// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
)

// machine runs programs and measures the memory that the programs hold on the first GPU. All sizes
// are in bytes.
type machine interface {
	// env returns the variables with which programs find the driver.
	env() []string
	// judges adds a process to the judged processes, whose memory counts. The memory of other
	// processes, such as the process that measures a context, is not under the limit.
	judges(pid int)
	// held returns the memory that the judged processes physically hold. The result never exceeds
	// the memory held at some instant of the call.
	held() (uint64, error)
	// contexts returns the memory and the number of contexts. known is false if the machine cannot
	// report the memory.
	contexts() (bytes uint64, count uint32, known bool, err error)
	// peaks returns the greatest memory that each judged process has held, including ended
	// processes. peaks returns nil if the machine does not record peaks.
	peaks() ([]uint64, error)
	// pause returns the time between two calls of held.
	pause() time.Duration
	close() error
}

// simulated is a machine with one simulated GPU.
type simulated struct {
	tool, dir string
	libraries string // directory of the libraries with the names of the profile's driver
	oracle    *oracle.Oracle

	mutex  sync.Mutex
	judged map[int]bool // pids
}

// simulatedMemory is the memory of the simulated GPU.
const simulatedMemory = "memory = 16GiB\n"

// newSimulated creates a GPU with the driver of a profile, or with the simulator's own driver if
// profile is "". context is the size of contexts in bytes, or 0 for the driver's own size. build is
// the directory of the built project.
func newSimulated(build, dir, profile string, context uint64) (*simulated, error) {
	s := &simulated{
		tool:   filepath.Join(build, "gpusim", "gpusim"),
		dir:    dir,
		judged: map[int]bool{},
	}
	config := simulatedMemory
	if context > 0 {
		config += fmt.Sprintf("context = %d\n", context)
	}
	file := dir + ".conf"
	err := os.WriteFile(file, []byte(config+"[gpu]\n"), 0o600)
	if err != nil {
		return nil, err
	}
	args := []string{"create", "--seed", "1", "--config", file}
	if profile != "" {
		args = append(args, "--profile", profile)
	}
	if err := s.run(append(args, dir)...); err != nil {
		return nil, err
	}
	if s.oracle, err = oracle.Open(dir); err != nil {
		return nil, errors.Join(err, s.run("destroy", dir))
	}
	s.libraries = filepath.Join(build, "gpusim", "drivers", s.oracle.Names())
	return s, nil
}

func (s *simulated) run(args ...string) error {
	command := exec.Command(s.tool, args...)
	command.Env = without(os.Environ()) // --profile selects the profile
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("gpusim %q: %w: %s", args, err, output)
	}
	return nil
}

func (s *simulated) env() []string {
	return []string{"GPUSIM_STATE=" + filepath.Join(s.dir, "state"), "LD_LIBRARY_PATH=" + s.libraries}
}

func (s *simulated) pause() time.Duration { return 200 * time.Microsecond }

// held reads the usage of every process twice and adds up the lesser values. Therefore held counts
// memory that moves between processes during the measurement at most once.
func (s *simulated) held() (uint64, error) {
	first, err := s.uses()
	if err != nil {
		return 0, err
	}
	second, err := s.uses()
	if err != nil {
		return 0, err
	}
	var sum uint64
	for process, bytes := range first {
		sum += min(bytes, second[process])
	}
	return sum, nil
}

// identity distinguishes processes with the same process ID.
type identity struct {
	pid   int
	start uint64
}

func (s *simulated) judges(pid int) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.judged[pid] = true
}

func (s *simulated) isJudged(pid int) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.judged[pid]
}

// processes returns the judged processes.
func (s *simulated) processes() ([]oracle.Process, error) {
	all, err := s.oracle.Processes()
	return slices.DeleteFunc(all, func(p oracle.Process) bool { return !s.isJudged(p.Pid) }), err
}

func (s *simulated) uses() (map[identity]uint64, error) {
	processes, err := s.processes()
	if err != nil {
		return nil, err
	}
	uses := map[identity]uint64{}
	for _, p := range processes {
		for _, use := range p.GPUs {
			uses[identity{p.Pid, p.Start}] += use.Bytes
		}
	}
	return uses, nil
}

func (s *simulated) contexts() (bytes uint64, count uint32, known bool, err error) {
	processes, err := s.processes()
	for _, p := range processes {
		for _, use := range p.GPUs {
			bytes += use.ContextBytes
			count += use.Contexts
		}
	}
	return bytes, count, true, err
}

func (s *simulated) peaks() ([]uint64, error) {
	live, err := s.processes()
	if err != nil {
		return nil, err
	}
	ended, err := s.oracle.Finished()
	if err != nil {
		return nil, err
	}
	peaks := []uint64{}
	for _, p := range live {
		for _, use := range p.GPUs {
			peaks = append(peaks, use.PeakBytes)
		}
	}
	for _, p := range ended {
		if !s.isJudged(p.Pid) {
			continue
		}
		for _, use := range p.GPUs {
			peaks = append(peaks, use.PeakBytes)
		}
	}
	return peaks, nil
}

func (s *simulated) close() error {
	return errors.Join(s.oracle.Close(), s.run("destroy", s.dir))
}

// real is a machine with a real GPU that no other program uses. Programs hold the
// memory that the driver reports as used, less the memory that was used at the
// beginning.
type real struct {
	info string // the program that queries NVML
	idle uint64
}

func newReal(build string) (*real, error) {
	r := &real{info: filepath.Join(build, "workload", "info")}
	used, err := r.used()
	r.idle = used
	return r, err
}

func (*real) env() []string                           { return nil }
func (*real) judges(int)                              {}
func (*real) pause() time.Duration                    { return 10 * time.Millisecond }
func (*real) contexts() (uint64, uint32, bool, error) { return 0, 0, false, nil }
func (*real) peaks() ([]uint64, error)                { return nil, nil }
func (*real) close() error                            { return nil }

func (r *real) held() (uint64, error) {
	used, err := r.used()
	if err != nil || used < r.idle {
		return 0, err
	}
	return used - r.idle, nil
}

func (r *real) used() (uint64, error) {
	output, err := exec.Command(r.info, "--no-cuda").Output()
	if err != nil {
		return 0, fmt.Errorf("query NVML: %w", err)
	}
	return usedByNVML(output)
}

// usedByNVML parses the output of `info`.
func usedByNVML(output []byte) (uint64, error) {
	var seen struct {
		NVML struct {
			Devices []struct {
				Memory struct {
					Error int    `json:"error_code"`
					Used  uint64 `json:"used"`
				} `json:"memory"`
			} `json:"devices"`
		} `json:"nvml"`
	}
	if err := json.Unmarshal(output, &seen); err != nil {
		return 0, fmt.Errorf("read the output of info: %w", err)
	}
	if len(seen.NVML.Devices) == 0 {
		return 0, fmt.Errorf("NVML shows no GPU: %s", output)
	}
	memory := seen.NVML.Devices[0].Memory
	if memory.Error != 0 {
		return 0, fmt.Errorf("query the used memory from NVML: error %d", memory.Error)
	}
	return memory.Used, nil
}
