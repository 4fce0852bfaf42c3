// SPDX-License-Identifier: Apache-2.0

// Package cudatest runs the workloads of test/workload on the simulated driver
// and compares their reports with the oracle's figures.
package cudatest

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
	"github.com/nri-vgpu/nri-vgpu/gpusim/simtest"
)

const (
	mib          = 1 << 20
	memoryBytes  = 2048 * mib
	contextBytes = 512 * mib
)

// fill is the output of the workload fill.
type fill struct {
	Way          string   `json:"way"`
	Pid          int      `json:"pid"`
	UUID         string   `json:"uuid"`
	TotalSeen    uint64   `json:"total_mem_seen"`
	FreeBefore   uint64   `json:"free_seen_before"`
	FreeAfter    uint64   `json:"free_seen_after"`
	GrantedBytes uint64   `json:"granted_bytes"`
	Pieces       uint64   `json:"pieces"`
	RoundBytes   []uint64 `json:"round_bytes"`
	Outcome      string   `json:"outcome"`
	Error        string   `json:"error"`
	Call         string   `json:"call"`
}

// runWorkload runs a workload and decodes the line that it prints.
func runWorkload(t testing.TB, machine *simtest.Machine, result any, name string, args ...string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	command := machine.Command(t, simtest.Workload(t, name), args...)
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		t.Fatalf("%s %q: %v: %s%s", name, args, err, &stdout, &stderr)
	}
	if err := json.Unmarshal(stdout.Bytes(), result); err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, &stdout)
	}
}

// finished returns the oracle's record of a workload that has ended.
func finished(t testing.TB, machine *simtest.Machine, pid int) oracle.PastUse {
	t.Helper()
	truth, err := oracle.Open(machine.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer truth.Close()
	all, err := truth.Finished()
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range all {
		if process.Pid == pid && len(process.GPUs) == 1 {
			return process.GPUs[0]
		}
	}
	t.Fatalf("process %d is not among the finished: %+v", pid, all)
	return oracle.PastUse{}
}

// TestFillEveryWay fills a GPU in every way of the workload.
func TestFillEveryWay(t *testing.T) {
	machine := simtest.New(t, 1, memoryBytes)
	list, err := exec.Command(simtest.Workload(t, "fill"), "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(list)) {
		way := strings.Fields(line)[0]
		t.Run(way, func(t *testing.T) {
			var got fill
			runWorkload(t, machine, &got, "fill", "--way", way, "--chunk", "512MiB", "--rounds", "2")
			if got.Outcome != "refused" || got.Error != "CUDA_ERROR_OUT_OF_MEMORY" {
				t.Errorf("%+v", got)
			}
			if got.TotalSeen != memoryBytes || got.FreeBefore != memoryBytes-contextBytes {
				t.Errorf("total %d, free %d", got.TotalSeen, got.FreeBefore)
			}
			if got.RoundBytes[0] != got.RoundBytes[1] {
				t.Errorf("rounds %v: some memory was not freed", got.RoundBytes)
			}
			checkFilled(t, machine, got)
		})
	}
}

// checkFilled compares a fill with the oracle: the device was full, and only
// the context was charged beyond the granted bytes.
func checkFilled(t testing.TB, machine *simtest.Machine, got fill) {
	t.Helper()
	use := finished(t, machine, got.Pid)
	slack := slackBytes[got.Way]
	if accounted := got.GrantedBytes + contextBytes; use.PeakBytes < accounted || use.PeakBytes > accounted+slack {
		t.Errorf("held %d bytes, granted %d and a context", use.PeakBytes, got.GrantedBytes)
	}
	if use.PeakBytes > memoryBytes || use.PeakBytes+slack < memoryBytes {
		t.Errorf("refused at %d of %d bytes", use.PeakBytes, memoryBytes)
	}
}

// slackBytes is the allowed difference for each way. Modules hold code in addition to the requested
// variables.
var slackBytes = map[string]uint64{"module": mib}

// TestFillTogether fills one GPU from threads and processes at the same time. Together the
// processes get all of the memory, and no more.
func TestFillTogether(t *testing.T) {
	machine := simtest.New(t, 1, memoryBytes)
	const processes = 3
	fills := make([]fill, processes)
	var wait sync.WaitGroup
	for i := range fills {
		wait.Add(1)
		go func() {
			defer wait.Done()
			runWorkload(t, machine, &fills[i], "fill", "--threads", "4", "--chunk", "1MiB", "--delay", "0.5", "--hold", "2")
		}()
	}
	wait.Wait()
	var held uint64
	for _, got := range fills {
		held += got.GrantedBytes + contextBytes
	}
	if held != memoryBytes {
		t.Errorf("the processes together held %d of %d bytes: %+v", held, memoryBytes, fills)
	}
}

// TestLookup reaches the driver's functions by exported names.
func TestLookup(t *testing.T) {
	machine := simtest.New(t, 1, memoryBytes)
	var got fill
	runWorkload(t, machine, &got, "fill", "--lookup", "dlsym", "--max", "1000000")
	if got.Outcome != "max" || got.GrantedBytes != 1000000 {
		t.Errorf("%+v", got)
	}
}
