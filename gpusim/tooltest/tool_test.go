// SPDX-License-Identifier: Apache-2.0

// Package tooltest tests the gpusim tool's subcommands.
package tooltest

import (
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
	"github.com/nri-vgpu/nri-vgpu/gpusim/simtest"
)

const gib = 1 << 30

// TestCDI parses the printed specification with the reference implementation.
func TestCDI(t *testing.T) {
	machine := simtest.New(t, 2, gib)
	truth, err := oracle.Open(machine.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer truth.Close()
	gpus, err := truth.GPUs()
	if err != nil {
		t.Fatal(err)
	}
	text := machine.Tool(t, "cdi", "--driver-dir", "/opt/driver", "--device-dir", machine.Dir)
	raw, err := cdi.ParseSpec([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := parser.ValidateVendorName("nvidia.com"); err != nil || raw.Kind != "nvidia.com/gpu" {
		t.Errorf("kind %q, %v", raw.Kind, err)
	}
	device := func(minor string) string { return filepath.Join(machine.Dir, "gpu"+minor) + " /dev/gpusim/gpu" + minor }
	want := map[string][]string{
		"0": {device("0")}, "1": {device("1")},
		gpus[0].UUID: {device("0")}, gpus[1].UUID: {device("1")},
		"all": {device("0"), device("1")},
	}
	got := map[string][]string{}
	for _, device := range raw.Devices {
		if err := parser.ValidateDeviceName(device.Name); err != nil {
			t.Error(err)
		}
		for _, mount := range device.ContainerEdits.Mounts {
			got[device.Name] = append(got[device.Name], mount.HostPath+" "+mount.ContainerPath)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	common := make([]string, 0, len(raw.ContainerEdits.Mounts))
	for _, mount := range raw.ContainerEdits.Mounts {
		common = append(common, mount.HostPath+" "+mount.ContainerPath+" "+mount.Options[0])
	}
	wantCommon := []string{
		"/opt/driver/libcuda.so.1 /usr/lib/x86_64-linux-gnu/libcuda.so.1 ro",
		"/opt/driver/libnvidia-ml.so.1 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1 ro",
		machine.Dir + "/state /dev/gpusim/state rw",
	}
	if diff := cmp.Diff(wantCommon, common); diff != "" {
		t.Error(diff)
	}
}

// report is the checked part of the output of `gpusim oracle --json`.
type report struct {
	GPUs []struct {
		UUID        string `json:"uuid"`
		MemoryBytes uint64 `json:"memory_bytes"`
		UsedBytes   uint64 `json:"used_bytes"`
		Lost        bool   `json:"lost"`
	} `json:"gpus"`
	Processes []struct {
		Pid  int `json:"pid"`
		GPUs []struct {
			Index     int    `json:"index"`
			Bytes     uint64 `json:"bytes"`
			PeakBytes uint64 `json:"peak_bytes"`
		} `json:"gpus"`
	} `json:"processes"`
	Finished []struct {
		Pid  int    `json:"pid"`
		Comm string `json:"comm"`
		GPUs []struct {
			PeakBytes uint64 `json:"peak_bytes"`
		} `json:"gpus"`
	} `json:"finished"`
}

func readReport(t *testing.T, machine *simtest.Machine) report {
	t.Helper()
	var got report
	if err := json.Unmarshal([]byte(machine.Tool(t, "oracle", "--json", machine.Dir)), &got); err != nil {
		t.Fatal(err)
	}
	return got
}

func TestOracle(t *testing.T) {
	machine := simtest.New(t, 2, gib)
	holder := simtest.StartHolder(t, machine)
	holder.Hold(t, 1, 3000)
	holder.Hold(t, 1, -1000)
	got := readReport(t, machine)
	if len(got.GPUs) != 2 || got.GPUs[1].UsedBytes != 2000 || got.GPUs[0].MemoryBytes != gib {
		t.Errorf("GPUs %+v", got.GPUs)
	}
	if len(got.Processes) != 1 || got.Processes[0].Pid != holder.Pid || len(got.Processes[0].GPUs) != 1 {
		t.Fatalf("processes %+v", got.Processes)
	}
	if use := got.Processes[0].GPUs[0]; use.Index != 1 || use.Bytes != 2000 || use.PeakBytes != 3000 {
		t.Errorf("use %+v", use)
	}
	if table := machine.Tool(t, "oracle", machine.Dir); !strings.Contains(table, "gpusim-holder") {
		t.Errorf("table without the process:\n%s", table)
	}
	holder.Kill(t)
	got = readReport(t, machine)
	if len(got.Processes) != 0 || len(got.Finished) != 1 || got.Finished[0].Pid != holder.Pid {
		t.Fatalf("after a kill: %+v", got)
	}
	if got.Finished[0].GPUs[0].PeakBytes != 3000 || got.GPUs[1].UsedBytes != 0 {
		t.Errorf("after a kill: %+v", got)
	}
}

func TestInject(t *testing.T) {
	machine := simtest.New(t, 2, gib)
	uuid := readReport(t, machine).GPUs[1].UUID
	machine.Tool(t, "inject", "--gpu", uuid, "lost", machine.Dir)
	if gpus := readReport(t, machine).GPUs; gpus[0].Lost || !gpus[1].Lost {
		t.Errorf("GPUs %+v", gpus)
	}
	machine.Tool(t, "inject", "clear", machine.Dir)
	if gpus := readReport(t, machine).GPUs; gpus[1].Lost {
		t.Errorf("GPUs %+v", gpus)
	}
}

// TestMisuse checks the exit status, and checks that the message names the cause.
func TestMisuse(t *testing.T) {
	machine := simtest.New(t, 1, gib)
	tests := []struct {
		args   []string
		status int
		phrase string
	}{
		{nil, 2, "usage: gpusim COMMAND"},
		{[]string{"dance"}, 2, "dance"},
		{[]string{"oracle"}, 2, "usage: gpusim oracle"},
		{[]string{"oracle", "--interval", "0", machine.Dir}, 2, "--interval"},
		{[]string{"oracle", "/nonexistent"}, 1, "/nonexistent/state"},
		{[]string{"inject", machine.Dir}, 2, "Faults:"},
		{[]string{"inject", "xid", "none", machine.Dir}, 2, `"none"`},
		{[]string{"inject", "nvml-error", "1000", machine.Dir}, 2, "0 to 999"},
		{[]string{"inject", "--gpu", "1", "lost", machine.Dir}, 1, "no GPU 1"},
		{[]string{"hold"}, 2, "usage: gpusim hold"},
		{[]string{"hold", "--encode", "101", machine.Dir}, 2, "1 to 100"},
		{[]string{"hold", "--memory", "much", machine.Dir}, 2, "--memory"},
		{[]string{"hold", "--memory", "2GiB", machine.Dir}, 1, "less than 2147483648"},
		{[]string{"hold", "--gpu", "1", machine.Dir}, 1, "no GPU 1"},
		{[]string{"hold", "/nonexistent"}, 1, "/nonexistent/state"},
		{[]string{"cdi"}, 2, "--driver-dir"},
		{[]string{"cdi", "--driver-dir", "lib", "--device-dir", machine.Dir}, 2, "absolute"},
	}
	for _, test := range tests {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			output, err := exec.Command(filepath.Join(machine.ToolDir, "gpusim"), test.args...).CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != test.status || !strings.Contains(string(output), test.phrase) {
				t.Errorf("%v: %s; want status %d and %q", err, output, test.status, test.phrase)
			}
		})
	}
}
