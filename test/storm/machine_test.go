// SPDX-License-Identifier: Apache-2.0

package storm

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
	"github.com/nri-vgpu/nri-vgpu/gpusim/simtest"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

const (
	gib  = 1 << 30
	gpus = 2
	// memory is each GPU's memory, with which a storm can exceed its limit.
	memory = 16 * gib
	// limit is the group's limit on each GPU, and limitFlag is the limit as an argument of vgpuctl.
	limit     = 6 * gib
	limitFlag = "6Gi"
	group     = "storm"
	// patience bounds operations that are immediate on an idle machine.
	patience = 60 * time.Second
)

// machine is a machine with simulated GPUs and one group of runs.
type machine struct {
	*testing.T
	build  string // directory of its copies of the built files
	runs   string // directory of groups
	env    []string
	oracle *oracle.Oracle
	ways   string // the driver's ways, separated by commas
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	simulated := simtest.New(t, gpus, memory)
	simtest.Workload(t, "storm") // builds all programs
	m := &machine{T: t, build: t.TempDir(), runs: t.TempDir()}
	m.keep(simulated)
	m.env = append(simulated.Env(), "PATH="+os.Getenv("PATH"), "XDG_RUNTIME_DIR="+m.runs)
	var err error
	if m.oracle, err = oracle.Open(simulated.Dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.oracle.Close() })
	m.ways = m.there(*ways)
	return m
}

// there returns the wanted ways that the driver supports, and logs the other ways.
func (m *machine) there(wanted string) string {
	m.Helper()
	if wanted != "all" {
		return wanted
	}
	list, err := m.command(m.workload("fill"), "--list").Output()
	if err != nil {
		m.Fatalf("list the ways: %v", err)
	}
	var has []string
	for line := range strings.Lines(string(list)) {
		way, _, _ := strings.Cut(line, " ")
		said, _ := m.command(m.workload("fill"), "--way", way, "--pieces", "1").Output()
		if strings.Contains(string(said), `"error":"CUDA_ERROR_NOT_FOUND"`) {
			m.Logf("left out: %s, which the driver does not have", way)
		} else {
			has = append(has, way)
		}
	}
	return strings.Join(has, ",")
}

// keep copies the built files, so that a concurrent build does not disturb the processes of the
// storm.
func (m *machine) keep(simulated *simtest.Machine) {
	m.Helper()
	build := filepath.Dir(simulated.ToolDir)
	driver, err := filepath.Rel(simulated.ToolDir, simulated.LibraryDir)
	if err != nil {
		m.Fatal(err)
	}
	for from, to := range map[string]string{
		*library:                               "lib",
		filepath.Join(build, "bin/vgpuctl"):    "bin/vgpuctl",
		filepath.Join(build, "workload/fill"):  "workload/fill",
		filepath.Join(build, "workload/storm"): "workload/storm",
		simulated.ToolDir:                      "gpusim",
	} {
		to = filepath.Join(m.build, to)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			m.Fatal(err)
		}
		if out, err := exec.Command("cp", "-r", from, to).CombinedOutput(); err != nil {
			m.Fatalf("copy %s (`make build` comes first): %v: %s", from, err, out)
		}
	}
	simulated.LibraryDir = filepath.Join(m.build, "gpusim", driver)
}

// groupDir returns the directory of the group's pages.
func (m *machine) groupDir() string { return filepath.Join(m.runs, "nri-vgpu", group) }

// command returns a command for a program on this machine that runs at the lowest priority.
func (m *machine) command(args ...string) *exec.Cmd {
	cmd := exec.Command("nice", append([]string{"-n", "10"}, args...)...)
	cmd.Env = slices.Clone(m.env)
	return cmd
}

// limited returns a command for a program in the group.
func (m *machine) limited(args ...string) *exec.Cmd {
	return m.command(append([]string{filepath.Join(m.build, "bin/vgpuctl"), "run", "--group", group, "--"}, args...)...)
}

// found creates the group, which stays until the test ends.
func (m *machine) found() {
	m.Helper()
	args := []string{filepath.Join(m.build, "bin/vgpuctl"), "run", "--memory", limitFlag, "--group", group}
	for gpu := range gpus {
		args = append(args, "--gpu", fmt.Sprint(gpu))
	}
	keeper := m.command(append(args, "--", "sleep", "infinity")...)
	var stderr bytes.Buffer
	keeper.Stderr = &stderr
	if err := keeper.Start(); err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() {
		_ = keeper.Process.Kill()
		_ = keeper.Wait()
		eventually.Holds(m, patience, "the group is removed", func() bool { return !exists(m.groupDir()) })
	})
	eventually.Holds(m, patience, "the group is there", func() bool { return exists(filepath.Join(m.groupDir(), "limits")) })
}

func (m *machine) workload(name string) string { return filepath.Join(m.build, "workload", name) }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// peaks returns the most memory of each GPU that all processes together ever held, according to the
// simulated driver.
func (m *machine) peaks() []uint64 {
	m.Helper()
	all, err := m.oracle.GPUs()
	if err != nil {
		m.Fatal(err)
	}
	peaks := make([]uint64, len(all))
	for i, gpu := range all {
		peaks[i] = gpu.PeakUsedBytes
	}
	return peaks
}
