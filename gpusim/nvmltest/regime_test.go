// SPDX-License-Identifier: Apache-2.0

package nvmltest

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
	"github.com/nri-vgpu/nri-vgpu/gpusim/simtest"
)

// These variables turn the test's own program into a process of a container. Each view needs a new
// process, because a process opens NVML once.
const (
	lookVariable   = "NVMLTEST_LIBRARY"
	holderVariable = "NVMLTEST_HOLDER"
)

// view is a process's view of the GPU.
type view struct {
	// Holder is the pid of the process that the viewer started, in the holder's pid namespace.
	Holder    int
	Processes []nvml.ProcessInfo
	// Opening, Handle and List are the durations of the calls.
	Opening, Handle, List time.Duration
}

// look starts a holder of memory on request, and prints NVML's report of the
// first GPU.
func look() int {
	var seen view
	if program := os.Getenv(holderVariable); program != "" {
		holder := exec.Command(program)
		in, _ := holder.StdinPipe()
		out, _ := holder.StdoutPipe()
		if err := holder.Start(); err != nil {
			return fail(err)
		}
		defer func() { _ = holder.Process.Kill(); _ = holder.Wait() }()
		fmt.Fprintln(in, "hold", 0, contained)
		if _, err := out.Read(make([]byte, 8)); err != nil {
			return fail(err)
		}
		seen.Holder = holder.Process.Pid
	}
	library := nvml.New(nvml.WithLibraryPath(os.Getenv(lookVariable)))
	begin := time.Now()
	if result := library.Init(); result != nvml.SUCCESS {
		return fail(result)
	}
	seen.Opening, begin = time.Since(begin), time.Now()
	device, _ := library.DeviceGetHandleByIndex(0)
	seen.Handle, begin = time.Since(begin), time.Now()
	var result nvml.Return
	if seen.Processes, result = device.GetComputeRunningProcesses(); result != nvml.SUCCESS {
		return fail(result)
	}
	seen.List = time.Since(begin)
	if err := json.NewEncoder(os.Stdout).Encode(seen); err != nil {
		return fail(err)
	}
	return 0
}

func fail(err any) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// These constants are the sizes of the memory that the tests' processes hold.
const (
	contained = 300 << 20
	outside   = 200 << 20
)

// machineWith makes a machine with a profile of these lines.
func machineWith(t *testing.T, profile string) *simtest.Machine {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "profile.conf")
	if err := os.WriteFile(file, []byte(profile), 0o600); err != nil {
		t.Fatal(err)
	}
	machine := simtest.At(t, filepath.Join(dir, "gpusim"))
	machine.Tool(t, "create", "--profile", file, "--gpus", "1", machine.Dir)
	return machine
}

// lookIn runs look in a new process, in a new pid namespace or in the host's pid namespace.
func lookIn(t *testing.T, machine *simtest.Machine, holder string, own bool) view {
	t.Helper()
	command := machine.Command(t, os.Args[0])
	command.Env = append(command.Env, lookVariable+"="+filepath.Join(machine.LibraryDir, "libnvidia-ml.so.1"), holderVariable+"="+holder)
	var stderr strings.Builder
	command.Stderr = &stderr
	if own {
		command.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		}
	}
	output, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	var seen view
	if err := json.Unmarshal(output, &seen); err != nil {
		t.Fatal(err)
	}
	return seen
}

// bytesOf returns the memory that a view reports for the process with this pid.
func (v view) bytesOf(pid int) (bytes uint64, listed bool) {
	for _, process := range v.Processes {
		if int(process.Pid) == pid {
			return process.UsedGpuMemory, true
		}
	}
	return 0, false
}

// TestRegimes reads the memory of two processes, from the host and from a container. One process is
// in the same container, and the other process is elsewhere.
func TestRegimes(t *testing.T) {
	const unknown = math.MaxUint64
	tests := []struct {
		regime string
		// inside is the report for a container's own process, by its own pid, or -1 if NVML does
		// not list the process. elsewhere is the report for the host's process, by the host's pid.
		inside, elsewhere float64
		host              float64
	}{
		{"true", contained, -1, outside},
		{"host-pids", -1, outside, outside},
		{"own-zero", 0, -1, outside},
		{"own-bytes", contained, -1, outside},
		{"not-available", unknown, -1, unknown},
	}
	for _, tt := range tests {
		t.Run(tt.regime, func(t *testing.T) {
			t.Parallel()
			machine := machineWith(t, "nvml = "+tt.regime+"\n")
			holder := simtest.StartHolder(t, machine)
			if !holder.Hold(t, 0, outside) {
				t.Fatal("the GPU is full")
			}
			check := func(what string, seen view, pid int, want float64) {
				t.Helper()
				bytes, listed := seen.bytesOf(pid)
				if listed != (want >= 0) || listed && float64(bytes) != want {
					t.Errorf("%s: process %d has %d bytes, listed %v, want %.0f: %+v", what, pid, bytes, listed, want, seen.Processes)
				}
			}
			seen := lookIn(t, machine, simtest.HolderProgram(t), true)
			check("its own process, in the container", seen, seen.Holder, tt.inside)
			check("the host's process, in the container", seen, holder.Pid, tt.elsewhere)
			check("the host's process, on the host", lookIn(t, machine, "", false), holder.Pid, tt.host)

			inner := simtest.StartContainedHolder(t, machine)
			if !inner.Hold(t, 0, contained) {
				t.Fatal("the GPU is full")
			}
			want := tt.inside
			if tt.regime == "host-pids" || tt.regime == "own-zero" {
				want = contained
			}
			check("a container's process, on the host", lookIn(t, machine, "", false), inner.Pid, want)
			// After an observer on the host has read the processes, the process has the host's pid.
			if tt.regime == "host-pids" {
				check("another container's process", lookIn(t, machine, "", true), inner.Pid, contained)
			}
		})
	}
}

// TestCosts times calls, alone and beside other processes.
func TestCosts(t *testing.T) {
	const profile = "nvml_open = 60ms\nnvml_handle = 40ms\nnvml_processes = 20ms\n"
	const open, handle, list = 60 * time.Millisecond, 40 * time.Millisecond, 20 * time.Millisecond
	for name, tt := range map[string]struct {
		lock  string
		queue bool
	}{"each for itself": {"no", false}, "under a lock of the machine": {"yes", true}} {
		t.Run(name, func(t *testing.T) {
			machine := machineWith(t, profile+"nvml_lock = "+tt.lock+"\n")
			alone := lookIn(t, machine, "", false)
			if alone.Opening < open || alone.Handle < handle || alone.List < list {
				t.Errorf("opening took %v, a handle %v, a list %v", alone.Opening, alone.Handle, alone.List)
			}
			const callers = 5
			var all sync.WaitGroup
			begin := time.Now()
			for range callers {
				all.Go(func() { lookIn(t, machine, "", false) })
			}
			all.Wait()
			if took := time.Since(begin); tt.queue && took < callers*(open+handle+list) {
				t.Errorf("%d callers took %v: the callers did not queue", callers, took)
			}
		})
	}
}

// TestCallsAreCounted compares the counts of NVML calls of the two oracles.
func TestCallsAreCounted(t *testing.T) {
	machine := simtest.New(t, 1, gib)
	truth, err := oracle.Open(machine.Dir)
	if err != nil {
		t.Fatal(err)
	}
	holder := simtest.StartHolder(t, machine)
	holder.Hold(t, 0, outside)
	lookIn(t, machine, "", false)
	lookIn(t, machine, "", true)

	users, err := truth.NVMLUsers()
	if err != nil || len(users) != 2 {
		t.Fatalf("users are %+v, %v", users, err)
	}
	for _, user := range users {
		// The process calls nvmlInit, gets a handle and lists the processes; go-nvml makes a few
		// more calls.
		if user.Calls < 3 || user.Calls > 20 || user.Alive {
			t.Errorf("got %+v", user)
		}
	}
	processes, err := truth.Processes()
	if err != nil || len(processes) != 1 || processes[0].NVMLCalls != 0 {
		t.Errorf("the holder, which made no call, is %+v, %v", processes, err)
	}
	var told struct {
		Processes []struct {
			NVMLCalls *uint64 `json:"nvml_calls"`
		}
		NVML []struct{ Calls uint64 }
	}
	if err := json.Unmarshal([]byte(machine.Tool(t, "oracle", "--json", machine.Dir)), &told); err != nil {
		t.Fatal(err)
	}
	if len(told.NVML) != 2 || told.NVML[0].Calls != users[0].Calls || len(told.Processes) != 1 || told.Processes[0].NVMLCalls == nil {
		t.Errorf("gpusim oracle reports %+v", told)
	}
}
