// SPDX-License-Identifier: Apache-2.0

// Package vgpuctl tests the built vgpuctl with the built interposer on simulated GPUs, as a user
// without Kubernetes runs vgpuctl. Run `make build` first.
package vgpuctl

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/local"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

const (
	limit    = 2 << 30     // bytes, of --memory 2Gi
	patience = time.Minute // an idle machine needs only a part of this time
)

// machine is a simulated machine with two GPUs of 16 GiB.
type machine struct {
	testing.TB
	build string // directory of the built programs
	state string // the simulator's state
	runs  string // directory of groups
	env   []string
}

func newMachine(t testing.TB) *machine {
	t.Helper()
	build, err := filepath.Abs("../../build")
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{TB: t, build: build, state: filepath.Join(t.TempDir(), "gpusim"), runs: t.TempDir()}
	m.env = []string{
		"PATH=" + os.Getenv("PATH"),
		"GPUSIM_STATE=" + filepath.Join(m.state, "state"),
		"LD_LIBRARY_PATH=" + filepath.Join(build, "gpusim"),
		"XDG_RUNTIME_DIR=" + m.runs,
	}
	m.run(filepath.Join(build, "gpusim/gpusim"), "create", "--gpus", "2", "--memory", "16GiB", m.state)
	return m
}

func (m *machine) workload(name string) string { return filepath.Join(m.build, "workload", name) }

// command returns the command `vgpuctl args…`.
func (m *machine) command(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(m.build, "bin/vgpuctl"), args...)
	cmd.Env = slices.Clone(m.env)
	return cmd
}

// run runs a program to its end, and fails the test if the program fails.
func (m *machine) run(program string, args ...string) string {
	m.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env = slices.Clone(m.env)
	return m.finish(0, cmd)
}

func (m *machine) finish(status int, cmd *exec.Cmd) string {
	m.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != status {
		m.Fatalf("%v: %v, exit status %d, want %d\n%s%s", cmd.Args, err, got, status, &stdout, &stderr)
	}
	if status != 0 {
		return stderr.String()
	}
	return stdout.String()
}

// start starts a command, and kills it when the test ends.
func (m *machine) start(cmd *exec.Cmd) *exec.Cmd {
	m.Helper()
	if err := cmd.Start(); err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

func (m *machine) oracle() *oracle.Oracle {
	m.Helper()
	o, err := oracle.Open(m.state)
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() { o.Close() })
	return o
}

// peak returns the largest sum that any finished process physically held, over all GPUs.
func (m *machine) peak(o *oracle.Oracle) uint64 {
	m.Helper()
	finished, err := o.Finished()
	if err != nil {
		m.Fatal(err)
	}
	var most uint64
	for _, p := range finished {
		var sum uint64
		for _, g := range p.GPUs {
			sum += g.PeakBytes
		}
		most = max(most, sum)
	}
	return most
}

// held returns the memory that live processes physically hold.
func (m *machine) held(o *oracle.Oracle) (sum uint64, processes int) {
	m.Helper()
	live, err := o.Processes()
	if err != nil {
		m.Fatal(err)
	}
	for _, p := range live {
		for _, g := range p.GPUs {
			sum += g.Bytes
		}
	}
	return sum, len(live)
}

// names returns the first words of a program's --list.
func (m *machine) names(program string) []string {
	m.Helper()
	var names []string
	for line := range strings.Lines(m.run(m.workload(program), "--list")) {
		if fields := strings.Fields(line); len(fields) > 0 {
			names = append(names, fields[0])
		}
	}
	return names
}

// TestEveryWorkloadStaysWithinItsMemory runs every program of test/workload, in each of its ways,
// under a limit. The test queries the oracle for the memory that the program really held.
func TestEveryWorkloadStaysWithinItsMemory(t *testing.T) {
	t.Parallel()
	plain := newMachine(t)
	programs := [][]string{
		{"info", "--context"},
		{"latency", "--duration", "0.2"},
		{"card"},
		{"exchange", "--duration", "0.2"}, // finds no second GPU
		{"storm", "--duration", "0.5"},
		{"fill", "--way", "alloc", "--threads", "4"},
		{"fill", "--way", "alloc", "--lookup", "dlsym"},
		{"fill", "--way", "alloc", "--rounds", "3"},
	}
	for _, way := range plain.names("fill") {
		programs = append(programs, []string{"fill", "--way", way})
	}
	for _, pattern := range plain.names("spin") {
		programs = append(programs, []string{"spin", "--pattern", pattern, "--duration", "0.05"})
	}
	for _, way := range plain.names("evade") {
		programs = append(programs, []string{"evade", "--way", way, "--duration", "0.2"})
	}
	if entries, err := os.ReadDir(filepath.Join(plain.build, "workload")); err != nil {
		t.Fatal(err)
	} else {
		for _, e := range entries {
			// These programs use no GPU, or need a library or two GPUs, like the scenes. The
			// interposer's own tests run these programs.
			if !e.IsDir() && !slices.Contains([]string{"attack", "linger", "pester", "scenes", "scenes_constructor.so"}, e.Name()) && !slices.ContainsFunc(programs, func(p []string) bool { return p[0] == e.Name() }) {
				t.Errorf("workload %s is not tried", e.Name())
			}
		}
	}
	for _, p := range programs {
		t.Run(strings.Join(p, " "), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			args := append([]string{"run", "--memory", "2Gi", "--", m.workload(p[0])}, p[1:]...)
			cmd := m.command(args...)
			// The interposer's own tests check the errors of refused ways.
			if out, err := cmd.CombinedOutput(); err != nil && !errors.As(err, new(*exec.ExitError)) {
				t.Fatalf("%v: %s", err, out)
			}
			if peak := m.peak(m.oracle()); peak > limit || peak == 0 {
				t.Errorf("the program held %d bytes at its peak, want more than 0 and at most %d", peak, limit)
			}
		})
	}
}

// TestMemoryIsThere checks that a program can allocate its limit, to the last per cent.
func TestMemoryIsThere(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.finish(0, m.command("run", "--memory", "2Gi", "--gpu", "1", "--", m.workload("fill")))
	o := m.oracle()
	if peak := m.peak(o); peak > limit || peak < limit/100*99 {
		t.Errorf("the program held %d bytes at its peak, want %d", peak, limit)
	}
	finished, err := o.Finished()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range finished {
		for _, g := range p.GPUs {
			if g.PeakBytes > 0 && g.Index != 1 {
				t.Errorf("%s held %d bytes of GPU %d", p.Comm, g.PeakBytes, g.Index)
			}
		}
	}
}

// TestRunFromAReleasesArchive checks that vgpuctl finds the interposer in the directory lib beside
// itself, as a release's archive unpacks both.
func TestRunFromAReleasesArchive(t *testing.T) {
	m := newMachine(t)
	unpacked := filepath.Join(t.TempDir(), "unpacked")
	if err := os.CopyFS(filepath.Join(unpacked, "lib"), os.DirFS(filepath.Join(m.build, "lib"))); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(filepath.Join(m.build, "bin/vgpuctl"))
	if err != nil {
		t.Fatal(err)
	}
	vgpuctl := filepath.Join(unpacked, "vgpuctl")
	if err := os.WriteFile(vgpuctl, program, 0o755); err != nil {
		t.Fatal(err)
	}
	m.run(vgpuctl, "run", "--memory", "2Gi", "--", m.workload("fill"))
	if peak := m.peak(m.oracle()); peak > limit || peak < limit/100*99 {
		t.Errorf("the program held %d bytes at its peak, want %d", peak, limit)
	}
}

// TestWithoutLimitThereIsMore checks that the other tests would detect a missing limit.
func TestWithoutLimitThereIsMore(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.run(m.workload("fill"))
	if peak := m.peak(m.oracle()); peak <= limit {
		t.Errorf("without vgpuctl it held %d bytes at its peak, want more than %d", peak, limit)
	}
}

// TestGroupSharesItsMemory checks that four concurrent programs of a group have one limit, which
// status shows. No memory of killed programs stays charged.
func TestGroupSharesItsMemory(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	o := m.oracle()
	fill := []string{m.workload("fill"), "--chunk", "4MiB", "--hold", "600"}
	first := m.start(m.command(append([]string{"run", "--memory", "2Gi", "--group", "lab", "--"}, fill...)...))
	group := filepath.Join(m.runs, "nri-vgpu/lab")
	eventually.Holds(m, patience, "the group is there", func() bool { _, err := os.Stat(group); return err == nil })
	all := []*exec.Cmd{first}
	eventually.Holds(m, patience, "the first holds memory", func() bool { held, _ := m.held(o); return held > 0 })
	for range 3 {
		all = append(all, m.start(m.command(append([]string{"run", "--group", "lab", "--"}, fill...)...)))
	}
	eventually.Holds(m, patience, "they hold 99 % of their limit", func() bool {
		held, _ := m.held(o)
		if held > limit {
			t.Fatalf("they hold %d bytes, want at most %d", held, limit)
		}
		return held >= limit/100*99
	})

	var holders []local.Holder
	if err := json.Unmarshal([]byte(m.finish(0, m.command("status", "-o", "json"))), &holders); err != nil {
		t.Fatal(err)
	}
	held, _ := m.held(o)
	if len(holders) != 1 || holders[0].Group != "lab" || holders[0].GPUs[0].MemoryLimitBytes != limit ||
		holders[0].GPUs[0].MemoryUsedBytes < held || holders[0].GPUs[0].MemoryUsedBytes > limit {
		t.Errorf("status reports %+v; held are %d bytes", holders, held)
	}

	for _, cmd := range all {
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	eventually.Holds(m, patience, "the group is gone", func() bool { _, err := os.Stat(group); return errors.Is(err, os.ErrNotExist) })
	if held, n := m.held(o); held != 0 || n != 0 {
		t.Errorf("%d processes still hold %d bytes", n, held)
	}
}

// TestProgramTakesOurPlace checks that the program has vgpuctl's exit status, process id, signals
// and environment.
func TestProgramTakesOurPlace(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	run := func(args ...string) *exec.Cmd {
		return m.command(append([]string{"run", "--memory", "2Gi", "--"}, args...)...)
	}
	m.finish(7, run("sh", "-c", "exit 7"))

	if got := m.finish(0, run("sh", "-c", "echo $# $1 --memory", "sh", "a b")); got != "1 a b --memory\n" {
		t.Errorf("arguments became %q", got)
	}

	preloaded := run("sh", "-c", "echo $LD_PRELOAD")
	preloaded.Env = append(preloaded.Env, "LD_PRELOAD=libm.so.6")
	lib := regexp.QuoteMeta(filepath.Join(m.build, "lib"))
	want := regexp.MustCompile("^" + lib + "(/drivers/[0-9a-f]+)?/libcuda.so.1:" + lib + "(/drivers/[0-9a-f]+)?/libnvidia-ml.so.1:libm.so.6\n$")
	if got := m.finish(0, preloaded); !want.MatchString(got) {
		t.Errorf("LD_PRELOAD is %q, want what matches %q", got, want)
	}

	pid := run("sh", "-c", "echo $$; exec sleep 600")
	out, err := pid.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	m.start(pid)
	var said [16]byte
	n, err := out.Read(said[:])
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.TrimSpace(string(said[:n])), pid.Process.Pid; got != strconv.Itoa(want) {
		t.Errorf("the program has pid %s, vgpuctl had %d", got, want)
	}
	if err := pid.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = pid.Wait()
	if status := pid.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGTERM {
		t.Errorf("the program ended with %v, want SIGTERM", pid.ProcessState)
	}

	eventually.Holds(m, patience, "no run is left", func() bool {
		left, err := filepath.Glob(filepath.Join(m.runs, "nri-vgpu/*/limits"))
		return err == nil && len(left) == 0
	})
}

// TestProgramHasNoChildren checks that the watcher is not a child of the program, because the
// program may wait for all its children.
func TestProgramHasNoChildren(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := m.command("run", "--memory", "2Gi", "--", self)
	cmd.Env = append(cmd.Env, waits+"=1")
	m.finish(0, cmd)
}

// waits is a variable that makes this program wait for a child, and succeed if the program has no
// child.
const waits = "VGPUCTL_TEST_WAITS"

func TestMain(m *testing.M) {
	if os.Getenv(waits) == "" {
		os.Exit(m.Run())
	}
	if _, err := syscall.Wait4(-1, nil, 0, nil); err != syscall.ECHILD {
		os.Exit(1)
	}
}

func TestStatusInARun(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	vgpuctl := filepath.Join(m.build, "bin/vgpuctl")
	got := m.finish(0, m.command("run", "--memory", "2Gi", "--cores", "30", "--group", "lab", "--", vgpuctl, "status"))
	if !strings.Contains(got, "run lab  GPU-") || !strings.Contains(got, "2048 MiB  30 %") {
		t.Errorf("status printed\n%s", got)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	tests := []struct {
		name   string
		args   []string
		status int
		want   string
	}{
		{"no limit", []string{"run", "--", "true"}, 1, "vgpuctl: no limit is set: set --memory, --cores or both"},
		{"no program", []string{"run", "--memory", "2Gi"}, 1, "requires at least 1 arg"},
		{"unknown program", []string{"run", "--memory", "2Gi", "--", "no-such-program"}, 127, "find the program"},
		{"bad memory", []string{"run", "--memory", "2GB", "--", "true"}, 1, `--memory is "2GB"`},
		{"bad cores", []string{"run", "--cores", "101", "--", "true"}, 1, "--cores is 101"},
		{"more than the GPU has", []string{"run", "--memory", "17Gi", "--", "true"}, 1, "allowed: at most the 16384 MiB of GPU 0"},
		{"no such GPU", []string{"run", "--memory", "1Gi", "--gpu", "2", "--", "true"}, 1, `--gpu is "2"; allowed: 0 or GPU-`},
		{"no such group", []string{"run", "--group", "lab", "--", "true"}, 1, `group "lab" does not exist`},
		{"in a run", []string{"run", "--memory", "1Gi", "--", filepath.Join(m.build, "bin/vgpuctl"), "run", "--memory", "8Gi", "--", "true"}, 1,
			"already apply here; `vgpuctl status` shows them"},
		{"bad output", []string{"status", "-o", "xml"}, 1, `--output is "xml"; allowed: table, json, yaml`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := m.finish(tt.status, m.command(tt.args...))
			if !strings.Contains(got, tt.want) || strings.Count(got, "\n") != 1 {
				t.Errorf("got %q, want one line with %q", got, tt.want)
			}
		})
	}
	blind := m.command("run", "--memory", "1Gi", "--", "true")
	blind.Env = append(blind.Env, "LD_LIBRARY_PATH=/nonexistent")
	if got := m.finish(1, blind); !strings.Contains(got, "cannot open the CUDA driver: libcuda.so.1") || !strings.Contains(got, "install the NVIDIA driver") {
		t.Errorf("without a driver it prints %q", got)
	}
}

// TestOtherGPUsAreFull checks that NVML reports a run's GPU with the limit, and other GPUs with
// their size and no free memory. Monitors such as nvtop divide by a GPU's size.
func TestOtherGPUsAreFull(t *testing.T) {
	t.Parallel()
	type memory struct{ Total, Used, Free uint64 }
	type device struct {
		Memory   memory
		MemoryV2 memory `json:"memory_v2"`
	}
	var view struct{ NVML struct{ Devices []device } }
	m := newMachine(t)
	said := m.finish(0, m.command("run", "--memory", "2Gi", "--gpu", "0", "--", m.workload("info")))
	if err := json.Unmarshal([]byte(said), &view); err != nil {
		t.Fatalf("%v in %s", err, said)
	}
	own, other := memory{Total: limit, Free: limit}, memory{Total: 16 << 30, Used: 16 << 30}
	if want := []device{{own, own}, {other, other}}; !slices.Equal(view.NVML.Devices, want) {
		t.Errorf("NVML reports %+v, want %+v", view.NVML.Devices, want)
	}
}
