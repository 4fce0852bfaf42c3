// SPDX-License-Identifier: Apache-2.0

// Package programs runs CUDA programs of other projects, from Debian's packages, on simulated GPUs.
// The programs are ffmpeg, programs that gcc compiles for NVIDIA's GPUs (OpenMP, OpenACC), Halide's
// pipelines, and Numba's layer over the driver. clang compiles the programs for OpenMP, too. Each
// program runs natively and under limits, with each driver of gpusim/profiles. Run `make build`
// first.
//
// A simulated GPU does not compute. The tests check the programs' calls, copies, grants and
// refusals. The simulator reports the memory that the programs really held.
package programs

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
	"github.com/nri-vgpu/nri-vgpu/gpusim/simtest"
	"github.com/nri-vgpu/nri-vgpu/test/debian"
)

const (
	mib = 1 << 20
	gib = 1 << 30

	card  = 16 * gib // memory of each GPU
	limit = 2 * gib  // of --memory 2Gi

	// patience bounds programs that take seconds. A program that hangs must not delay the tests for
	// many minutes.
	patience = 2 * time.Minute
)

// compiled is the directory of the programs of testdata that gcc has compiled, with the directory
// "clang" of the programs that clang has compiled.
var compiled string

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "test/programs:", err)
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	err := debian.Install("test/programs", "real CUDA programs, some 500 MB",
		"clang-14", "clang-tools-14", "ffmpeg", "gcc-12", "gcc-12-offload-nvptx", "libgomp-plugin-nvptx1",
		"libomp-14-dev", "nvptx-tools", "python3-halide", "python3-numba")
	if err != nil {
		return 1, err
	}
	dir, err := os.MkdirTemp("", "programs")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	compiled = dir
	for source, language := range map[string]string{"openmp": "-fopenmp", "openmp_tasks": "-fopenmp", "openacc": "-fopenacc"} {
		gcc := exec.Command("gcc-12", "-O1", "-Wall", "-Werror", "-no-pie", language, "-foffload=nvptx-none",
			filepath.Join("testdata", source+".c"), "-o", filepath.Join(dir, source))
		if said, err := gcc.CombinedOutput(); err != nil {
			return 1, fmt.Errorf("%v: %w\n%s", gcc.Args, err, said)
		}
	}
	return m.Run(), nil
}

// kind is the simulator's own driver.
const kind = "kind"

// profiles returns the available drivers by name, with the files of their profiles. The simulator's
// own driver has no file.
func profiles(t testing.TB) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../../gpusim/profiles/*.conf")
	if err != nil || len(files) == 0 {
		t.Fatalf("find the profiles: %q, error %v", files, err)
	}
	all := map[string]string{kind: ""}
	for _, file := range files {
		all[strings.TrimSuffix(filepath.Base(file), ".conf")] = file
	}
	return all
}

// machine is a simulated machine with two GPUs on which a program runs.
type machine struct {
	testing.TB
	*simtest.Machine
	runs    string // directory of vgpuctl's groups
	context uint64 // size of a context in bytes
	vague   bool   // NVML does not list a process's memory
}

// newMachine makes a machine with the driver of a profile, or with the simulator's own driver if
// profile is "".
func newMachine(t testing.TB, profile string) *machine {
	t.Helper()
	m := &machine{TB: t, runs: t.TempDir()}
	if profile == "" {
		m.Machine = simtest.New(t, 2, card)
	} else {
		m.Machine = simtest.NewWith(t, profile, 2, card)
		text, err := os.ReadFile(profile)
		if err != nil {
			t.Fatal(err)
		}
		m.vague = strings.Contains(string(text), "\nnvml = not-available\n")
	}
	o := m.oracle()
	defer o.Close()
	gpus, err := o.GPUs()
	if err != nil {
		t.Fatal(err)
	}
	m.context = gpus[0].ContextBytes
	return m
}

// oracle returns the oracle, which reports the memory that processes hold.
func (m *machine) oracle() *oracle.Oracle {
	m.Helper()
	o, err := oracle.Open(m.Dir)
	if err != nil {
		m.Fatal(err)
	}
	return o
}

// result is the result of a program.
type result struct {
	stdout, stderr string
	peak           uint64 // largest number of bytes physically held, on both GPUs

	// Devices comes from the program's line of JSON.
	Devices int
	Granted uint64
}

// run runs a program to its end, and fails the test if the program fails.
func (m *machine) run(env []string, args ...string) result {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(append(os.Environ(), m.Env()...), append(env, "XDG_RUNTIME_DIR="+m.runs)...)
	cmd.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("not within %s: %w", patience, err)
		}
		m.Fatalf("%q: %v\n%s%s", args, err, &stdout, &stderr)
	}
	r := result{stdout: stdout.String(), stderr: stderr.String(), peak: m.peak(cmd.Process.Pid)}
	if strings.HasPrefix(r.stdout, "{") {
		if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
			m.Fatalf("%q printed %q: %v", args, r.stdout, err)
		}
	}
	return r
}

// limited runs a program by vgpuctl, with these options of `vgpuctl run`.
func (m *machine) limited(options, env []string, args ...string) result {
	m.Helper()
	vgpuctl := filepath.Join(m.ToolDir, "../bin/vgpuctl")
	return m.run(env, append(append([]string{vgpuctl, "run"}, options...), append([]string{"--"}, args...)...)...)
}

// peak returns the most that an ended process held.
func (m *machine) peak(pid int) uint64 {
	m.Helper()
	var sum uint64
	for _, p := range m.finished() {
		if p.Pid == pid {
			sum += held(p)
		}
	}
	return sum
}

// most returns the most that any ended process held.
func (m *machine) most() uint64 {
	m.Helper()
	var most uint64
	for _, p := range m.finished() {
		most = max(most, held(p))
	}
	return most
}

// held returns the sum of the peaks of a process's memory on all GPUs.
func held(p oracle.Finished) uint64 {
	var sum uint64
	for _, g := range p.GPUs {
		sum += g.PeakBytes
	}
	return sum
}

func (m *machine) finished() []oracle.Finished {
	m.Helper()
	o := m.oracle()
	defer o.Close()
	finished, err := o.Finished()
	if err != nil {
		m.Fatal(err)
	}
	return finished
}
