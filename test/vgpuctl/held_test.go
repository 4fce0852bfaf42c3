// SPDX-License-Identifier: Apache-2.0

package vgpuctl

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

const (
	smallContext  = 107 << 20
	smallContexts = "context = 107MiB\n" // a setting of the profile
)

// asker builds the program that queries its own memory, below the interposer, and returns the
// program's path.
func (m *machine) asker() string {
	m.Helper()
	program := filepath.Join(m.TempDir(), "asker")
	output, err := exec.Command("gcc", "-std=gnu11", "-o", program, "../../internal/registry/held/testdata/asker.c", "-ldl").CombinedOutput()
	if err != nil {
		m.Fatalf("%v: %s", err, output)
	}
	return program
}

// talk is a running asker.
type talk struct {
	ask func() string
}

// startAsker starts a command that is an asker, or that runs an asker.
func (m *machine) startAsker(command *exec.Cmd) talk {
	m.Helper()
	in, err := command.StdinPipe()
	if err != nil {
		m.Fatal(err)
	}
	out, err := command.StdoutPipe()
	if err != nil {
		m.Fatal(err)
	}
	command.Stderr = os.Stderr
	m.start(command)
	lines := bufio.NewReader(out)
	read := func() string {
		line, err := lines.ReadString('\n')
		if err != nil {
			m.Fatalf("the asker stopped reporting: %v", err)
		}
		return strings.TrimSuffix(line, "\n")
	}
	read() // its pid
	return talk{func() string {
		if _, err := fmt.Fprintln(in, "?"); err != nil {
			m.Fatal(err)
		}
		return read()
	}}
}

const askerBytes = 30 << 20

// asking returns the command line of an asker under limits, in the group "g".
func (m *machine) asking(limits ...string) []string {
	line := append([]string{filepath.Join(m.build, "bin/vgpuctl"), "run", "--group", "g"}, limits...)
	// The asker represents any program below the interposer, because the test is about the server.
	return append(line, "--", "env", "-u", "LD_PRELOAD", m.asker(), filepath.Join(m.build, "gpusim/libcuda.so.1"), "", strconv.Itoa(askerBytes))
}

func (m *machine) cmd(line ...string) *exec.Cmd {
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = m.env
	return cmd
}

func (m *machine) page(group string) []limits.Device {
	m.Helper()
	devices, err := limits.Read(filepath.Join(m.runs, "nri-vgpu", group, limits.LimitsFile))
	if err != nil {
		m.Fatal(err)
	}
	return devices
}

// TestARunLearnsWhatItHolds checks that without an agent the run's watcher measures the context,
// and reports the program's memory if NVML lists the memory.
func TestARunLearnsWhatItHolds(t *testing.T) {
	t.Parallel()
	contain := []string{"unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", `"$@"; exit $?`, "sh"}
	for _, tt := range []struct {
		regime          string
		host, contained bool
	}{
		{"true", true, true},
		{"host-pids", true, false}, // NVML's pids differ from the container's
		{"own-zero", true, false},
		{"own-bytes", true, true},
		{"not-available", false, false},
	} {
		for where, told := range map[string]bool{"on the host": tt.host, "in a container": tt.contained} {
			t.Run(tt.regime+" "+where, func(t *testing.T) {
				t.Parallel()
				m := newMachineWith(t, smallContexts+"nvml = "+tt.regime+"\n")
				line := m.asking("--memory", "400Mi")
				if where == "in a container" {
					line = append(contain[:len(contain):len(contain)], line...)
				}
				asker := m.startAsker(m.cmd(line...))
				if got := m.page("g")[0].ContextBytes; got != smallContext {
					t.Errorf("the usage page records %d bytes for a context", got)
				}
				if told {
					eventually.Holds(m, patience, "the program gets the memory that it holds", func() bool {
						return strings.HasSuffix(asker.ask(), fmt.Sprintf("=%d", smallContext+askerBytes))
					})
				} else if got := asker.ask(); got != "none" {
					t.Errorf("the program got %q", got)
				}
			})
		}
	}
}

// TestLimitsAreExactInEveryRegime checks a program under a limit with every report of NVML. The
// program gets all of the limit except its context, holds no more memory according to the oracle,
// and does not call NVML.
func TestLimitsAreExactInEveryRegime(t *testing.T) {
	t.Parallel()
	for _, regime := range []string{"true", "host-pids", "own-zero", "own-bytes", "not-available"} {
		t.Run(regime, func(t *testing.T) {
			t.Parallel()
			m := newMachineWith(t, smallContexts+"nvml = "+regime+"\nnvml_open = 20ms\n")
			o := m.oracle()
			m.finish(0, m.cmd("unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", `"$@"; exit $?`, "sh",
				filepath.Join(m.build, "bin/vgpuctl"), "run", "--memory", "2Gi", "--", m.workload("fill")))
			finished, err := o.Finished()
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range finished {
				if p.Comm != "fill" {
					continue
				}
				if p.NVMLCalls != 0 {
					t.Errorf("the program called NVML %d times", p.NVMLCalls)
				}
				if peak := p.GPUs[0].PeakBytes; peak > limit || peak < limit-limit/100 {
					t.Errorf("the program held %d bytes of a limit of %d", peak, limit)
				}
				return
			}
			t.Errorf("the program is not among %+v", finished)
		})
	}
}

// TestRunsMeasureOnce checks that one run measures the context, and that later and concurrent runs
// do not measure.
func TestRunsMeasureOnce(t *testing.T) {
	t.Parallel()
	m := newMachineWith(t, smallContexts)
	o := m.oracle()
	var all []*exec.Cmd
	for range 8 {
		all = append(all, m.start(m.command("run", "--memory", "1Gi", "--", m.workload("info"))))
	}
	for _, cmd := range all {
		_ = cmd.Wait()
	}
	m.finish(0, m.command("run", "--memory", "1Gi", "--", m.workload("info")))
	finished, err := o.Finished()
	if err != nil {
		t.Fatal(err)
	}
	measured := 0
	for _, p := range finished {
		if p.Comm == "vgpu-context" {
			measured++
		}
	}
	if measured != 1 {
		t.Errorf("a context was made %d times to measure it", measured)
	}
}

// TestARunWithoutNVML checks that without NVML a run uses the largest size of any context.
func TestARunWithoutNVML(t *testing.T) {
	t.Parallel()
	m := newMachineWith(t, smallContexts)
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(m.build, "gpusim/libcuda.so.1"), filepath.Join(dir, "libcuda.so.1")); err != nil {
		t.Fatal(err)
	}
	for i, entry := range m.env {
		if strings.HasPrefix(entry, "LD_LIBRARY_PATH=") {
			m.env[i] = "LD_LIBRARY_PATH=" + dir
		}
	}
	o := m.oracle()
	asker := m.startAsker(m.cmd(m.asking("--memory", "2Gi")...))
	if got := m.page("g")[0].ContextBytes; got != 0 {
		t.Errorf("the usage page records %d bytes", got)
	}
	if got := asker.ask(); got != "none" {
		t.Errorf("the program got %q", got)
	}
	if finished, err := o.Finished(); err != nil {
		t.Fatal(err)
	} else {
		for _, p := range finished {
			if p.Comm == "vgpu-context" {
				t.Error("a context was created that the run cannot measure")
			}
		}
	}
}

// TestAKilledWatcherIsReplaced checks that the next run of a group replaces a killed watcher. Until
// then the group's processes use estimates.
func TestAKilledWatcherIsReplaced(t *testing.T) {
	t.Parallel()
	m := newMachineWith(t, smallContexts)
	asker := m.startAsker(m.cmd(m.asking("--memory", "1Gi")...))
	told := func() bool { return strings.HasSuffix(asker.ask(), fmt.Sprintf("=%d", smallContext+askerBytes)) }
	eventually.Holds(m, patience, "the program gets the memory that it holds", told)

	pid := m.watcher("g")
	if err := exec.Command("kill", "-9", strconv.Itoa(pid)).Run(); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(m, patience, "no watcher answers", func() bool { return asker.ask() == "none" })
	m.start(m.cmd(m.asking()...))
	eventually.Holds(m, patience, "the program gets answers again", told)
	if again := m.watcher("g"); again == pid {
		t.Errorf("process %d watches still", pid)
	}
	m.start(m.cmd(m.asking()...))
	time.Sleep(200 * time.Millisecond)
	m.watcher("g") // checks that only one watcher runs
}

// watcher returns the pid of a group's only watcher.
func (m *machine) watcher(group string) int {
	m.Helper()
	dir := filepath.Join(m.runs, "nri-vgpu")
	output, err := exec.Command("pgrep", "-f", fmt.Sprintf("watch-group --detached %s %s", dir, group)).Output()
	fields := strings.Fields(string(output))
	if err != nil || len(fields) != 1 {
		m.Fatalf("the watchers of %s are %v, %v", group, fields, err)
	}
	pid, err := strconv.Atoi(fields[0])
	if err != nil {
		m.Fatal(err)
	}
	return pid
}
