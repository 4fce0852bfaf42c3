package oracle

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nri-vgpu/nri-vgpu/gpusim/simtest"
)

const gib = 1 << 30

// holder is a running testdata/holder.c.
type holder struct {
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
}

func startHolder(t *testing.T, machine *simtest.Machine, program string) *holder {
	t.Helper()
	h := &holder{command: machine.Command(t, program)}
	var err error
	if h.in, err = h.command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := h.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	h.out = bufio.NewReader(out)
	if err := h.command.Start(); err != nil {
		t.Fatal(err)
	}
	return h
}

// hold changes what the process holds of a GPU and returns its answer.
func (h *holder) hold(t *testing.T, gpu int, bytes int64) string {
	t.Helper()
	if _, err := fmt.Fprintln(h.in, gpu, bytes); err != nil {
		t.Fatal(err)
	}
	answer, err := h.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return answer[:len(answer)-1]
}

func (h *holder) kill(t *testing.T) {
	t.Helper()
	if err := h.command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := h.command.Wait(); !errors.As(err, &exit) {
		t.Fatal(err)
	}
}

func buildHolder(t *testing.T) string {
	t.Helper()
	core, err := filepath.Glob("../src/*.c")
	if err != nil || len(core) == 0 {
		t.Fatalf("no C sources in ../src: %v", err)
	}
	return compile(t, filepath.Join(t.TempDir(), "holder"), append(core, "testdata/holder.c")...)
}

func open(t *testing.T, machine *simtest.Machine) *Oracle {
	t.Helper()
	oracle, err := Open(machine.Dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := oracle.Close(); err != nil {
			t.Error(err)
		}
	})
	return oracle
}

func TestGPUs(t *testing.T) {
	oracle := open(t, simtest.New(t, 3, 16*gib))
	gpus, err := oracle.GPUs()
	if err != nil {
		t.Fatal(err)
	}
	want := []GPU{{Index: 0}, {Index: 1, Minor: 1}, {Index: 2, Minor: 2}}
	for i := range want {
		want[i].Name = "NVIDIA Simulated H200"
		want[i].MemoryBytes = 16 * gib
	}
	if diff := cmp.Diff(want, gpus, cmpopts.IgnoreFields(GPU{}, "UUID", "PCIBusID")); diff != "" {
		t.Error(diff)
	}
	if gpus[0].UUID == gpus[1].UUID || len(gpus[0].UUID) != 40 {
		t.Errorf("UUIDs %q and %q", gpus[0].UUID, gpus[1].UUID)
	}
}

func TestProcesses(t *testing.T) {
	machine := simtest.New(t, 2, 4*gib)
	oracle := open(t, machine)
	program := buildHolder(t)
	one, two := startHolder(t, machine, program), startHolder(t, machine, program)
	for _, step := range []struct {
		by     *holder
		gpu    int
		bytes  int64
		answer string
	}{
		{one, 0, 3 * gib, "ok"},
		{one, 0, -gib, "ok"},
		{two, 0, 3 * gib, "refused"},
		{two, 0, 2*gib + 1, "refused"},
		{two, 0, 2 * gib, "ok"},
		{two, 1, 7, "ok"},
	} {
		if got := step.by.hold(t, step.gpu, step.bytes); got != step.answer {
			t.Fatalf("%d bytes of GPU %d: %s, want %s", step.bytes, step.gpu, got, step.answer)
		}
	}
	got, err := oracle.Processes()
	if err != nil {
		t.Fatal(err)
	}
	pids := []int{one.command.Process.Pid, two.command.Process.Pid}
	want := []Process{
		{Pid: pids[0], SelfPid: pids[0], Comm: "holder", GPUs: []Use{
			{Index: 0, Bytes: 2 * gib, PeakBytes: 3 * gib}}},
		{Pid: pids[1], SelfPid: pids[1], Comm: "holder", GPUs: []Use{
			{Index: 0, Bytes: 2 * gib, PeakBytes: 2 * gib}, {Index: 1, Bytes: 7, PeakBytes: 7}}},
	}
	if want[0].Pid != got[0].Pid {
		want[0], want[1] = want[1], want[0]
	}
	ignore := cmp.Options{cmpopts.IgnoreFields(Process{}, "Hostname", "Start"), cmpopts.IgnoreFields(Use{}, "UUID")}
	if diff := cmp.Diff(want, got, ignore); diff != "" {
		t.Error(diff)
	}
	if hostname, _ := os.Hostname(); got[0].Hostname != hostname || got[0].Start == 0 {
		t.Errorf("hostname %q, start %d", got[0].Hostname, got[0].Start)
	}
}

// TestFinished kills a process and asks after it twice: before anybody but the
// oracle has noticed, and after the driver has.
func TestFinished(t *testing.T) {
	machine := simtest.New(t, 2, 4*gib)
	oracle := open(t, machine)
	program := buildHolder(t)
	one := startHolder(t, machine, program)
	one.hold(t, 1, 3*gib)
	one.hold(t, 1, -gib)
	one.kill(t)
	want := []Finished{{Pid: one.command.Process.Pid, SelfPid: one.command.Process.Pid, Comm: "holder",
		GPUs: []PastUse{{Index: 1, PeakBytes: 3 * gib}}}}
	check := func(when string) {
		t.Helper()
		got, err := oracle.Finished()
		if err != nil {
			t.Fatal(err)
		}
		ignore := cmp.Options{cmpopts.IgnoreFields(Finished{}, "Hostname", "Start", "End"),
			cmpopts.IgnoreFields(PastUse{}, "UUID")}
		if diff := cmp.Diff(want, got, ignore); diff != "" {
			t.Errorf("%s: %s", when, diff)
		}
		if live, err := oracle.Processes(); err != nil || len(live) != 0 {
			t.Errorf("%s: live processes %v, error %v", when, live, err)
		}
	}
	check("unnoticed")
	machine.Tool(t, "oracle", machine.Dir)
	check("noticed")
	two := startHolder(t, machine, program)
	if got := two.hold(t, 1, 4*gib); got != "ok" {
		t.Errorf("what a killed process held is %s", got)
	}
}

func TestOpenRefusesOtherFiles(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a state: %v", err)
	}
	for _, size := range []int64{0, 100, stateSize} {
		path := filepath.Join(dir, "state")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); !errors.Is(err, ErrNotState) {
			t.Errorf("with %d zero bytes: %v", size, err)
		}
	}
}
