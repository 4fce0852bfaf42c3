// SPDX-License-Identifier: Apache-2.0

package contexts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
	"github.com/nri-vgpu/nri-vgpu/gpusim/simtest"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu/nvml"
)

// These tests use the real libraries and programs of a simulated driver. A process can open NVML
// only once, so the test's own program measures.
const (
	libraryVariable = "CONTEXTS_TEST_LIBRARIES"
	programVariable = "CONTEXTS_TEST_PROGRAM"
	fileVariable    = "CONTEXTS_TEST_FILE"
)

func TestMain(m *testing.M) {
	if libraries := os.Getenv(libraryVariable); libraries != "" {
		os.Exit(measureHere(libraries))
	}
	os.Exit(m.Run())
}

// measureHere measures as a starting agent does, and prints the result.
func measureHere(libraries string) int {
	options := nvml.Options{Library: filepath.Join(libraries, "libnvidia-ml.so.1")}
	inventory, err := nvml.New(options).List()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	holdings := nvml.NewHoldings(options)
	s := New(Options{
		Measurer: &Measurer{Driver: holdings, Maker: &Child{
			Program: os.Getenv(programVariable),
			Library: func() (string, error) { return filepath.Join(libraries, "libcuda.so.1"), nil },
		}},
		Version: holdings.Version, File: os.Getenv(fileVariable), Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		GPUs: func() []gpu.GPU { return inventory },
	})
	s.Prepare(context.Background(), inventory)
	for _, g := range inventory {
		size := s.sizes[g.UUID]
		if err := json.NewEncoder(os.Stdout).Encode(size); err != nil {
			return 1
		}
	}
	return 0
}

func machineWith(t *testing.T, profile string) *simtest.Machine {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "profile.conf")
	if err := os.WriteFile(file, []byte("context = 107MiB\n"+profile), 0o600); err != nil {
		t.Fatal(err)
	}
	machine := simtest.At(t, filepath.Join(dir, "gpusim"))
	machine.Tool(t, "create", "--profile", file, "--gpus", "1", "--memory", "4GiB", machine.Dir)
	return machine
}

// agentOn has a process measure on a machine, optionally in its own pid namespace.
func agentOn(t *testing.T, machine *simtest.Machine, file string, contained bool) (size Size, log string) {
	t.Helper()
	command := machine.Command(t, os.Args[0])
	command.Env = append(command.Env, libraryVariable+"="+machine.LibraryDir, programVariable+"="+simtest.Helper(t, ProgramName), fileVariable+"="+file)
	if contained {
		command.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		}
	}
	var stderr strings.Builder
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	if err := json.Unmarshal(output, &size); err != nil {
		t.Fatal(err)
	}
	return size, stderr.String()
}

// TestEveryRegime checks that the agent measures a context on the host and in a container, in each
// way in which NVML lists processes.
func TestEveryRegime(t *testing.T) {
	for _, tt := range []struct {
		regime          string
		host, contained string // how the size was measured
	}{
		{"true", ByProcess, ByProcess},
		{"host-pids", ByProcess, ByDevice},
		{"own-zero", ByProcess, ByDevice},
		{"own-bytes", ByProcess, ByProcess},
		{"not-available", ByDevice, ByDevice},
	} {
		t.Run(tt.regime, func(t *testing.T) {
			t.Parallel()
			machine := machineWith(t, "nvml = "+tt.regime+"\ndriver = 535.1\n")
			for _, contained := range []bool{false, true} {
				want := map[bool]string{false: tt.host, true: tt.contained}[contained]
				size, log := agentOn(t, machine, filepath.Join(t.TempDir(), "contexts.json"), contained)
				if size.Bytes != 107*mib || size.How != want || size.Driver != "535.1" {
					t.Errorf("contained %v: got %+v, want %s: %s", contained, size, want, log)
				}
			}
		})
	}
}

// TestARestartedAgentMeasuresNothing checks that the next agent finds the stored size and makes no
// context.
func TestARestartedAgentMeasuresNothing(t *testing.T) {
	machine := machineWith(t, "")
	truth, err := oracle.Open(machine.Dir)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "contexts.json")
	for range 3 {
		if size, log := agentOn(t, machine, file, false); size.Bytes != 107*mib {
			t.Errorf("got %+v: %s", size, log)
		}
	}
	finished, err := truth.Finished()
	if err != nil || len(finished) != 1 {
		t.Errorf("contexts were made by %+v, %v, want one", finished, err)
	}
}

// TestGPUsThatAreUsed checks that the agent measures a context beside a tenant, and logs the error
// of a full GPU.
func TestGPUsThatAreUsed(t *testing.T) {
	machine := machineWith(t, "")
	tenant := simtest.StartHolder(t, machine)
	if !tenant.Hold(t, 0, 3<<30) {
		t.Fatal("the GPU is full")
	}
	if size, log := agentOn(t, machine, filepath.Join(t.TempDir(), "a"), false); size.Bytes != 107*mib {
		t.Errorf("beside a tenant: got %+v: %s", size, log)
	}
	if !tenant.Hold(t, 0, 1000*mib) {
		t.Fatal("the GPU is full")
	}
	size, log := agentOn(t, machine, filepath.Join(t.TempDir(), "b"), false)
	if size.Bytes != 0 || !strings.Contains(log, "CUDA_ERROR_OUT_OF_MEMORY") {
		t.Errorf("on a full GPU: got %+v: %s", size, log)
	}
}

func childOn(t *testing.T, machine *simtest.Machine) *Child {
	t.Helper()
	for _, entry := range machine.Env() {
		name, value, _ := strings.Cut(entry, "=")
		t.Setenv(name, value)
	}
	return &Child{
		Program: simtest.Helper(t, ProgramName),
		Library: func() (string, error) { return filepath.Join(machine.LibraryDir, "libcuda.so.1"), nil },
	}
}

func onlyGPU(t *testing.T, machine *simtest.Machine) string {
	t.Helper()
	truth, err := oracle.Open(machine.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer truth.Close()
	gpus, err := truth.GPUs()
	if err != nil {
		t.Fatal(err)
	}
	return gpus[0].UUID
}

// TestADriverThatHangs checks that a driver that hangs in cuInit costs one process, and at most the
// available time.
func TestADriverThatHangs(t *testing.T) {
	machine := machineWith(t, "init = 60s\n")
	c, uuid := childOn(t, machine), onlyGPU(t, machine)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	begin := time.Now()
	made, err := c.Make(ctx, uuid)
	if err == nil || !strings.Contains(err.Error(), "in time") {
		t.Errorf("got %v, %v", made, err)
	}
	if took := time.Since(begin); took > endTime {
		t.Errorf("it took %v", took)
	}
}

// TestTheProcessIsKnown checks that Is recognises the process that makes a context until the
// process has ended.
func TestTheProcessIsKnown(t *testing.T) {
	machine := machineWith(t, "")
	c, uuid := childOn(t, machine), onlyGPU(t, machine)
	if c.Is(0) || c.Is(os.Getpid()) {
		t.Error("nothing was started, and something is known")
	}
	made, err := c.Make(t.Context(), uuid)
	if err != nil {
		t.Fatal(err)
	}
	if !c.Is(made.PID()) || c.Is(os.Getpid()) {
		t.Errorf("process %d is not known", made.PID())
	}
	if err := made.End(t.Context()); err != nil || c.Is(made.PID()) {
		t.Errorf("it has ended (%v), and is known", err)
	}
}

func TestMakeFails(t *testing.T) {
	machine := machineWith(t, "")
	for name, tt := range map[string]struct {
		change func(*Child)
		uuid   string
		err    string
	}{
		"no program":      {func(c *Child) { c.Program = "/nonexistent" }, "", "no such file"},
		"no library":      {func(c *Child) { c.Library = func() (string, error) { return "", errors.New("no driver here") } }, "", "no driver here"},
		"not a driver":    {func(c *Child) { c.Library = func() (string, error) { return "/etc/passwd", nil } }, "", "cannot open the CUDA driver"},
		"another GPU":     {func(*Child) {}, "GPU-00000000-0000-0000-0000-000000000000", "CUDA"},
		"another program": {func(c *Child) { c.Program = "/bin/echo" }, "", "the driver makes none"},
	} {
		t.Run(name, func(t *testing.T) {
			c := childOn(t, machine)
			tt.change(c)
			uuid := tt.uuid
			if uuid == "" {
				uuid = onlyGPU(t, machine)
			}
			if _, err := c.Make(t.Context(), uuid); err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v", err)
			}
		})
	}
}
