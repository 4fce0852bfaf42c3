package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
)

// machine is where programs run, and the judge of what they hold. All sizes
// are in bytes, of the first GPU.
type machine interface {
	// env is what programs need to find the driver.
	env() []string
	// held is what all processes physically hold now; never more than what
	// they held at some instant of the call.
	held() (uint64, error)
	// peaks is the most that each process ever held, ended ones included;
	// nil if that is not recorded.
	peaks() ([]uint64, error)
	// pause is the time between two looks at held.
	pause() time.Duration
	close() error
}

// simulated is a machine with one simulated GPU.
type simulated struct {
	tool, dir string
	libraries string
	oracle    *oracle.Oracle
}

// simulatedGPU configures the simulator: a GPU of 16 GiB on which contexts have
// this size in bytes.
const simulatedGPU = "memory = 16GiB\ncontext = %d\n[gpu]\n"

// newSimulated makes a GPU with contexts of this size, in bytes. build is where
// the project is built.
func newSimulated(build, dir string, context uint64) (*simulated, error) {
	s := &simulated{
		tool:      filepath.Join(build, "gpusim", "gpusim"),
		dir:       dir,
		libraries: filepath.Join(build, "gpusim"),
	}
	config := dir + ".conf"
	err := os.WriteFile(config, fmt.Appendf(nil, simulatedGPU, context), 0o600)
	if err != nil {
		return nil, err
	}
	if err := s.run("create", "--seed", "1", "--config", config, dir); err != nil {
		return nil, err
	}
	if s.oracle, err = oracle.Open(dir); err != nil {
		return nil, errors.Join(err, s.run("destroy", dir))
	}
	return s, nil
}

func (s *simulated) run(args ...string) error {
	if output, err := exec.Command(s.tool, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("gpusim %q: %w: %s", args, err, output)
	}
	return nil
}

func (s *simulated) env() []string {
	return []string{"GPUSIM_STATE=" + filepath.Join(s.dir, "state"), "LD_LIBRARY_PATH=" + s.libraries}
}

func (s *simulated) pause() time.Duration { return 200 * time.Microsecond }

// held looks at every process twice and takes the lesser: what a process gave
// up while another took it is not counted for both.
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

// identity tells processes apart that had the same pid.
type identity struct {
	pid   int
	start uint64
}

func (s *simulated) uses() (map[identity]uint64, error) {
	processes, err := s.oracle.Processes()
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

func (s *simulated) peaks() ([]uint64, error) {
	live, err := s.oracle.Processes()
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
		for _, use := range p.GPUs {
			peaks = append(peaks, use.PeakBytes)
		}
	}
	return peaks, nil
}

func (s *simulated) close() error {
	return errors.Join(s.oracle.Close(), s.run("destroy", s.dir))
}

// real is a machine with a real GPU that nobody else uses: what the driver
// reports as used, less what was so at the beginning, is what programs hold.
type real struct {
	info string // the program that asks NVML
	idle uint64
}

func newReal(build string) (*real, error) {
	r := &real{info: filepath.Join(build, "workload", "info")}
	used, err := r.used()
	r.idle = used
	return r, err
}

func (*real) env() []string            { return nil }
func (*real) pause() time.Duration     { return 10 * time.Millisecond }
func (*real) peaks() ([]uint64, error) { return nil, nil }
func (*real) close() error             { return nil }

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
		return 0, fmt.Errorf("ask NVML: %w", err)
	}
	return usedByNVML(output)
}

// usedByNVML reads what `info` prints.
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
		return 0, fmt.Errorf("read what info printed: %w", err)
	}
	if len(seen.NVML.Devices) == 0 {
		return 0, fmt.Errorf("NVML shows no GPU: %s", output)
	}
	memory := seen.NVML.Devices[0].Memory
	if memory.Error != 0 {
		return 0, fmt.Errorf("NVML does not tell the memory used: error %d", memory.Error)
	}
	return memory.Used, nil
}
