// SPDX-License-Identifier: Apache-2.0

// Package simtest provides tests with a machine with simulated GPUs. The package builds the
// simulated driver, creates a state for the test, and removes the state afterwards.
package simtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Machine is a machine with simulated GPUs.
type Machine struct {
	// Dir holds the state and the device files, as /dev/gpusim does.
	Dir string
	// ToolDir holds the programs gpusim and nvidia-cuda-mps-control.
	ToolDir string
	// LibraryDir holds libcuda.so.1 and libnvidia-ml.so.1, with the names of the
	// machine's driver.
	LibraryDir string
	tool       string
	users      map[int]*exec.Cmd // by pid
}

// New creates a machine with this many GPUs of this many bytes each.
func New(t testing.TB, gpus int, memoryBytes uint64) *Machine {
	t.Helper()
	return NewAt(t, filepath.Join(t.TempDir(), "gpusim"), gpus, memoryBytes)
}

// NewAt creates the machine in a directory that the caller removes.
func NewAt(t testing.TB, dir string, gpus int, memoryBytes uint64) *Machine {
	t.Helper()
	machine := At(t, dir)
	machine.Tool(t, "create", "--gpus", strconv.Itoa(gpus), "--memory", strconv.FormatUint(memoryBytes, 10), dir)
	return machine
}

// NewWith creates a machine as New does, with the driver of a profile.
func NewWith(t testing.TB, profile string, gpus int, memoryBytes uint64) *Machine {
	t.Helper()
	machine := At(t, filepath.Join(t.TempDir(), "gpusim"))
	machine.Tool(t, "create", "--profile", profile, "--gpus", strconv.Itoa(gpus),
		"--memory", strconv.FormatUint(memoryBytes, 10), machine.Dir)
	return machine
}

// NewAs creates a machine from a configuration of the gpusim tool.
func NewAs(t testing.TB, config string) *Machine {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "gpusim.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	machine := At(t, filepath.Join(dir, "gpusim"))
	machine.Tool(t, "create", "--config", file, machine.Dir)
	return machine
}

// At returns the machine in this directory. The machine exists, or Tool creates the machine later.
func At(t testing.TB, dir string) *Machine {
	t.Helper()
	out := Build(t)
	m := &Machine{Dir: dir, ToolDir: out, tool: filepath.Join(out, "gpusim")}
	if _, err := os.Stat(filepath.Join(dir, "state")); err == nil {
		m.findLibraries(t)
	}
	return m
}

// findLibraries sets the library directory of the branch that the machine's driver names.
func (m *Machine) findLibraries(t testing.TB) {
	t.Helper()
	var state struct {
		Names string `json:"names"`
	}
	if err := json.Unmarshal([]byte(m.Tool(t, "oracle", "--json", m.Dir)), &state); err != nil {
		t.Fatalf("read the names of the driver in %s: %v", m.Dir, err)
	}
	m.LibraryDir = filepath.Join(m.ToolDir, "drivers", state.Names)
	if _, err := os.Stat(m.LibraryDir); err != nil {
		t.Fatalf("find the libraries of the driver %q: %v", state.Names, err)
	}
}

// Env returns the environment variables that select this machine for a program.
func (m *Machine) Env() []string {
	return []string{"GPUSIM_STATE=" + filepath.Join(m.Dir, "state"), "LD_LIBRARY_PATH=" + m.LibraryDir}
}

// Tool runs the gpusim tool and returns its output.
func (m *Machine) Tool(t testing.TB, args ...string) string {
	t.Helper()
	var stderr bytes.Buffer
	command := exec.Command(m.tool, args...)
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		t.Fatalf("gpusim %q: %v: %s", args, err, &stderr)
	}
	if args[0] == "create" {
		m.findLibraries(t)
	}
	return string(output)
}

// Command prepares a program to run on this machine, killed when the test ends.
func (m *Machine) Command(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	command := exec.CommandContext(t.Context(), name, args...)
	command.Env = append(os.Environ(), m.Env()...)
	return command
}

// Build builds the simulated driver and returns the directory with its
// libraries and the tool.
func Build(t testing.TB) string {
	t.Helper()
	if err := buildOnce(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root(), "build", "gpusim")
}

// Workload builds the workloads and returns the path of the workload with this name.
func Workload(t testing.TB, name string) string {
	t.Helper()
	if err := makeWorkloadsOnce(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root(), "build", "workload", name)
}

// Helper builds the programs that open the driver for vgpuctl and the agent, and returns the path
// of the program with this name.
func Helper(t testing.TB, name string) string {
	t.Helper()
	if err := makeHelpersOnce(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root(), "build", "lib", name)
}

var (
	makeHelpersOnce   = sync.OnceValue(func() error { return runMake(filepath.Join("cmd", "vgpuctl", "devices")) })
	buildOnce         = sync.OnceValue(func() error { return runMake("gpusim") })
	makeWorkloadsOnce = sync.OnceValue(func() error { return runMake(filepath.Join("test", "workload")) })
)

// runMake builds one directory.
func runMake(dir string) error {
	return underLock(func() error {
		command := exec.Command("make", "-s", "-C", filepath.Join(root(), dir), "BUILD="+filepath.Join(root(), "build"))
		if output, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("make %s: %w:\n%s", dir, err, output)
		}
		return nil
	})
}

// underLock runs a build under a lock, because the tests of several packages run at the same time.
func underLock(build func() error) error {
	dir := filepath.Join(root(), "build")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	lock, err := os.Create(filepath.Join(dir, ".lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("wait for other builds: %w", err)
	}
	return build()
}

// root returns the root of the source tree: the first directory with a go.mod, from the working
// directory up.
func root() string {
	start, err := os.Getwd()
	if err != nil {
		panic(fmt.Sprintf("find the source tree: %v", err))
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			panic(fmt.Sprintf("find the source tree: no go.mod above %s", start))
		}
	}
}
