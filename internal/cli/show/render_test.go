// SPDX-License-Identifier: Apache-2.0

package show

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
)

func some[T any](value T) *T { return &value }

var processes = []agentapi.Process{
	{
		Namespace: "cnvrg", Pod: "train", Container: "main", Node: "n1", UUID: "GPU-1", PID: 7, Command: "python train.py --data /a/very/long/path/to/data",
		Utilisation: some(24.6), ShareUtilisation: some(82.0), MemoryUsedBytes: some(uint64(1536<<20 + 1)), MemoryLimitBytes: 4096 << 20,
		ComputeLimitPPM: 300_000, Requests: map[string]int64{"cnvrg.io/metagpu": 30},
	},
	{Node: "n1", UUID: "GPU-1", PID: 12345, Command: "Xorg"},
	{
		Namespace: "ns", Pod: "two", Container: "a", Node: "n1", UUID: "GPU-2", PID: 1, Command: "b", Utilisation: some(0.0),
		MemoryUsedBytes: some(uint64(0)), MemoryLimitBytes: 1 << 20, Requests: map[string]int64{"b/2": 2, "a/1": 1},
	},
}

const (
	processTable = `POD    NS     DEVICE  NODE  GPU   OF SHARE  MEMORY         PID    CMD                                       REQ
train  cnvrg  GPU-1   n1    25 %  82 %      1537/4096 MiB  7      python train.py --data /a/very/long/pat…  30
-      -      GPU-1   n1    -     -         - MiB          12345  Xorg                                      -
two    ns     GPU-2   n1    0 %   -         0/1 MiB        1      b                                         a/1=1,b/2=2
`
	processTotal = "TOTAL         2 GPUs                        1537 MiB       3                                                a/1=1,b/2=2,cnvrg.io/metagpu=30\n"
	processNames = "process/7\nprocess/12345\nprocess/1\n"
	processRaw   = "cnvrg\ttrain\tmain\tGPU-1\tn1\t24.6\t82.0\t1610612737\t4294967296\t7\tpython train.py --data /a/very/long/path/to/data\t30\n" +
		"\t\t\tGPU-1\tn1\t\t\t\t0\t12345\tXorg\t-\n" +
		"ns\ttwo\ta\tGPU-2\tn1\t0.0\t\t0\t1048576\t1\tb\ta/1=1,b/2=2\n"
)

func TestProcessesAreWritten(t *testing.T) {
	for format, want := range map[string]string{FormatTable: processTable + processTotal, FormatRaw: processRaw, FormatName: processNames} {
		var out bytes.Buffer
		w := &writer[agentapi.Process]{view: processView, format: format, out: &out}
		if err := w.write(processes); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("%s: %s", format, diff)
		}
	}
	for format, decode := range map[string]func([]byte, any) error{
		FormatJSON: json.Unmarshal, FormatYAML: func(raw []byte, into any) error { return yaml.Unmarshal(raw, into) },
	} {
		var out bytes.Buffer
		w := &writer[agentapi.Process]{view: processView, format: format, out: &out}
		if err := w.write(processes); err != nil {
			t.Fatal(err)
		}
		var back []agentapi.Process
		if err := decode(out.Bytes(), &back); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(processes, back); diff != "" {
			t.Errorf("%s: %s", format, diff)
		}
	}
}

// TestTotals checks that totals count a container's request once, however many processes the
// container has.
func TestTotals(t *testing.T) {
	twice := []agentapi.Process{processes[0], processes[0]}
	if got := processTotals(twice); got["REQ"] != "30" || got["PID"] != "2" || got["DEVICE"] != "1 GPU" || got["MEMORY"] != "3073 MiB" {
		t.Errorf("totals of two processes of a container: %v", got)
	}
	if got := processTotals(processes[1:2]); got["MEMORY"] != "- MiB" || got["REQ"] != "-" {
		t.Errorf("totals without a known amount: %v", got)
	}
}

// TestNames checks that a name is written once for all containers and GPUs of a pod.
func TestNames(t *testing.T) {
	var out bytes.Buffer
	container := func(pod, name string) PodEntry {
		return PodEntry{Container: agentapi.Container{Namespace: "ns", Pod: pod, Container: name, GPUs: []agentapi.Share{{UUID: "a"}, {UUID: "b"}}}}
	}
	if err := (Listing{Format: FormatName, Order: ByName, Out: &out}).Pods([]PodEntry{container("p", "a"), container("p", "b"), container("q", "a")}); err != nil {
		t.Fatal(err)
	}
	if out.String() != "pod/p\npod/q\n" {
		t.Errorf("got %q", out.String())
	}
}

func TestDevicesAreWritten(t *testing.T) {
	devices := []agentapi.Device{
		{
			Index: 0, UUID: "GPU-1", Name: "NVIDIA H200", MemoryBytes: 16 << 30, MemoryUsedBytes: some(uint64(3 << 30)), Utilisation: some(40.0),
			Sharing: []agentapi.Sharing{{Resource: "cnvrg.io/metagpu", PerGPU: 100, ShareBytes: 171798691, Held: 30}, {Resource: "cnvrg.io/big", PerGPU: 4, ShareBytes: 4 << 30, Held: 2}},
		},
		{Index: 1, UUID: "GPU-2", MemoryBytes: 16 << 30, Unhealthy: "XID 79"},
	}
	for format, want := range map[string]string{
		FormatTable: `IDX    UUID    MEMORY          SHARES      SHARE SIZE
0      GPU-1   3072/16384 MiB  30/100,2/4  164 MiB,4096 MiB
1      GPU-2   -/16384 MiB     -           -
TOTAL  2 GPUs  3072/32768 MiB  30/100,2/4
`,
		FormatWide: `IDX    UUID    NAME         GPU   MEMORY          SHARES      SHARE SIZE        RESOURCE                       HEALTH
0      GPU-1   NVIDIA H200  40 %  3072/16384 MiB  30/100,2/4  164 MiB,4096 MiB  cnvrg.io/metagpu,cnvrg.io/big  ok
1      GPU-2   -            -     -/16384 MiB     -           -                 -                              XID 79
TOTAL  2 GPUs                     3072/32768 MiB  30/100,2/4
`,
		FormatName: "gpu/GPU-1\ngpu/GPU-2\n",
		FormatRaw:  "0\tGPU-1\tNVIDIA H200\t40.0\t3221225472\t17179869184\tcnvrg.io/metagpu=30/100*171798691,cnvrg.io/big=2/4*4294967296\n1\tGPU-2\t\t\t\t17179869184\t-\n",
	} {
		var out bytes.Buffer
		w := &writer[agentapi.Device]{view: deviceView, format: format, out: &out}
		if err := w.write(devices); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("%s: %s", format, diff)
		}
	}
}

// TestWatchedLines checks that a watch that writes to a file writes headings once, aligned columns,
// and one JSON list on each line.
func TestWatchedLines(t *testing.T) {
	var out bytes.Buffer
	w := &writer[agentapi.Process]{view: processView, format: FormatTable, out: &out, watched: true}
	for _, list := range [][]agentapi.Process{processes, processes[1:2]} {
		if err := w.write(list); err != nil {
			t.Fatal(err)
		}
	}
	lines := strings.Split(processTable, "\n")
	// A list that grows has no totals.
	if diff := cmp.Diff(processTable+lines[2]+"\n", out.String()); diff != "" {
		t.Error(diff)
	}
	out.Reset()
	j := &writer[agentapi.Process]{view: processView, format: FormatJSON, out: &out, watched: true}
	if err := errors.Join(j.write(processes), j.write(nil)); err != nil || strings.Count(out.String(), "\n") != 2 {
		t.Errorf("got %v, %q", err, out.String())
	}
	out.Reset()
	y := &writer[agentapi.Process]{view: processView, format: FormatYAML, out: &out, watched: true}
	if err := errors.Join(y.write(processes), y.write(nil)); err != nil || strings.Count(out.String(), "---\n") != 2 {
		t.Errorf("got %v, %q", err, out.String())
	}
	out.Reset()
	if err := w.write(nil); err != nil || out.String() != "No process uses a GPU here.\n" {
		t.Errorf("got %v, %q", err, out.String())
	}
}

// TestRedraw checks that each list on a terminal replaces the last list with its headings. The
// error of an absent agent also replaces the last list.
func TestRedraw(t *testing.T) {
	var out bytes.Buffer
	w := &writer[agentapi.Process]{view: processView, format: FormatTable, out: &out}
	if err := errors.Join(redraw(w, nil, processes), redraw(w, agentapi.ErrAway, nil), redraw(w, nil, processes)); err != nil {
		t.Fatal(err)
	}
	screens := strings.Split(out.String(), "\x1b[H\x1b[2J")
	if len(screens) != 4 || !strings.HasSuffix(screens[1], "\n"+processTable+processTotal) || !strings.HasSuffix(screens[2], "\n"+agentapi.ErrAway.Error()+"\n") || !strings.HasSuffix(screens[3], "\n"+processTable+processTotal) {
		t.Errorf("got %q", screens)
	}
}

// answering starts an agent that always returns the same answer.
func answering(t *testing.T, answer any) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "show") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	listener, err := net.Listen("unixpacket", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	packets, err := agentapi.Answer(answer)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 64))
			for _, p := range packets {
				_, _ = conn.Write(p)
			}
			conn.Close()
		}
	}()
	return filepath.Join(dir, "s")
}

// ending ends a watch at the second answer.
type ending struct {
	bytes.Buffer
	end  func()
	left int
}

func (e *ending) Write(p []byte) (int, error) {
	if e.left--; e.left == 0 {
		e.end()
	}
	return e.Buffer.Write(p)
}

func TestAsking(t *testing.T) {
	var out bytes.Buffer
	a := Asking{Socket: answering(t, processes), Format: FormatTable, Out: &out}
	if err := a.Processes(t.Context()); err != nil || out.String() != processTable+processTotal {
		t.Errorf("got %v, %q", err, out.String())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	watched := &ending{end: cancel, left: 2}
	a.Watch, a.Format, a.Out = true, FormatJSON, watched
	if err := a.Processes(ctx); err != nil || strings.Count(watched.String(), "\n") != 2 {
		t.Errorf("got %v, %q", err, watched.String())
	}
	a.Format = "xml"
	if err := a.Devices(ctx); err == nil || err.Error() != `--output is "xml"; allowed: table, wide, json, yaml, name, raw` {
		t.Errorf("got %v", err)
	}
	out.Reset()
	a = Asking{Socket: answering(t, agentapi.Pong{Node: "n1"}), Out: &out}
	if err := a.Ping(t.Context()); err != nil || !strings.HasPrefix(out.String(), "pong: the agent on n1 answers within ") {
		t.Errorf("got %v, %q", err, out.String())
	}
	a.Socket, a.Format = filepath.Join(t.TempDir(), "none"), FormatTable
	if err := a.Processes(t.Context()); !errors.Is(err, agentapi.ErrAway) {
		t.Errorf("without an agent: %v", err)
	}
}

func TestWhereToAsk(t *testing.T) {
	run := t.TempDir()
	if got := Socket(run); got != filepath.Join(run, "agent/agent.sock") {
		t.Errorf("in a container: %s", got)
	}
	if err := os.WriteFile(filepath.Join(run, "admin.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := Socket(run); got != filepath.Join(run, "admin.sock") {
		t.Errorf("on the node: %s", got)
	}
}

func TestOneLine(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"", ""}, {" a\n\tb ", "a b"}, {"ü…", "ü…"}, {"a\x1b[2J\x9b\u202eb\xff", "a?[2J\ufffd?b\ufffd"},
	} {
		if got := OneLine(tt.text); got != tt.want {
			t.Errorf("OneLine(%q) = %q, want %q", tt.text, got, tt.want)
		}
	}
}
