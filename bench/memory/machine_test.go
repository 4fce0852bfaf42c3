// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/gpusim/simtest"
)

// TestNVMLJudge runs a program that holds memory on a simulated GPU, and queries NVML as on a
// machine with a real GPU.
func TestNVMLJudge(t *testing.T) {
	sim := simtest.New(t, 1, 4*gib)
	for _, variable := range []string{"GPUSIM_STATE", "LD_LIBRARY_PATH"} {
		t.Setenv(variable, lookUp(t, sim.Env(), variable))
	}
	simtest.Workload(t, "info")
	r, err := newReal("../../build")
	if err != nil {
		t.Fatal(err)
	}
	if held, err := r.held(); err != nil || held != 0 {
		t.Errorf("idle: %d bytes held, error %v", held, err)
	}
	argv := append([]string{simtest.Workload(t, "fill"), "--max", "1GiB"}, alone("alloc").args()...)
	p, err := start(t.Context(), alone("alloc"), argv, os.Environ())
	if err != nil {
		t.Fatal(err)
	}
	defer p.end()
	if f, err := p.result(); err != nil || f.Granted != gib {
		t.Fatalf("got %v, error %v", f, err)
	}
	if held, err := r.held(); err != nil || held != gib+512*mib {
		t.Errorf("%d bytes held, error %v", held, err)
	}
}

// TestSimulatedJudge checks that held counts only judged processes.
func TestSimulatedJudge(t *testing.T) {
	simtest.Build(t)
	profiles, err := profilesIn("../../gpusim/profiles")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range profiles {
		t.Run(p.name, func(t *testing.T) {
			m, err := newSimulated("../../build", t.TempDir()+"/gpu", p.file, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := m.close(); err != nil {
					t.Error(err)
				}
			})
			env := append(without(os.Environ()), m.env()...)
			argv := append([]string{simtest.Workload(t, "fill"), "--max", "1GiB"}, alone("alloc").args()...)
			for judged := range 2 {
				p, err := start(t.Context(), alone("alloc"), argv, env)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(p.end)
				if judged == 1 {
					m.judges(p.cmd.Process.Pid)
				}
				if f, err := p.result(); err != nil || f.Granted != gib {
					t.Fatalf("got %v, error %v", f, err)
				}
			}
			size, err := contextSize(m, gib)
			if err != nil || size == 0 || size%mib != 0 {
				t.Errorf("a context of %d bytes, error %v", size, err)
			}
			held, err := m.held()
			peaks, peaksErr := m.peaks()
			// The driver may hold a few chunks in addition to the granted
			// memory.
			if err != nil || held < gib+size || held > gib+size+16*mib || peaksErr != nil || len(peaks) != 1 || peaks[0] < held {
				t.Errorf("%d bytes held, error %v, peaks %v, error %v", held, err, peaks, peaksErr)
			}
		})
	}
}

func lookUp(t *testing.T, env []string, name string) string {
	t.Helper()
	command := exec.Command("printenv", name)
	command.Env = env
	value, err := command.Output()
	if err != nil {
		t.Fatalf("%s is not in %v", name, env)
	}
	return string(value[:len(value)-1])
}

func TestUsedByNVML(t *testing.T) {
	tests := []struct {
		name, output string
		used         uint64
		fails        bool
	}{
		{"used", `{"nvml":{"devices":[{"memory":{"error_code":0,"total":16,"used":7}},{"memory":{"used":9}}]}}`, 7, false},
		{"no GPU", `{"nvml":{"init_error_code":9}}`, 0, true},
		{"an error", `{"nvml":{"devices":[{"memory":{"error_code":999}}]}}`, 0, true},
		{"not JSON", `NVML?`, 0, true},
	}
	for _, test := range tests {
		if used, err := usedByNVML([]byte(test.output)); used != test.used || (err != nil) != test.fails {
			t.Errorf("%s: %d, error %v", test.name, used, err)
		}
	}
}

// recorder is a machine with recorded peaks.
type recorder struct {
	machine
	recorded []uint64
}

func (s recorder) peaks() ([]uint64, error) { return s.recorded, nil }

func TestPeakOf(t *testing.T) {
	tests := []struct {
		name     string
		recorded []uint64
		sampled  uint64
		peak     uint64
		exact    bool
	}{
		{"one process", []uint64{0, 7}, 5, 7, true},
		{"several at the same time", []uint64{7, 6}, 13, 13, false},
		{"several, one after the other", []uint64{7, 6}, 6, 7, false},
		{"nothing recorded", nil, 5, 5, false},
	}
	for _, test := range tests {
		peak, exact, err := peakOf(recorder{recorded: test.recorded}, test.sampled)
		if peak != test.peak || exact != test.exact || err != nil {
			t.Errorf("%s: %d, exact %v, error %v", test.name, peak, exact, err)
		}
	}
}
