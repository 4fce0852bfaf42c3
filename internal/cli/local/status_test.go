// SPDX-License-Identifier: Apache-2.0

package local

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

// pages creates the pages of a holder in a new directory.
func pages(t *testing.T, dir string, memory uint64, ppm uint32) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := limits.Create(dir, []limits.Device{{UUID: uuid, MemoryBytes: memory, ComputePPM: ppm}}); err != nil {
		t.Fatal(err)
	}
}

func TestStatusOfOne(t *testing.T) {
	run, group := t.TempDir(), filepath.Join(t.TempDir(), "lab")
	pages(t, group, 1<<30, 300_000)
	want := []Holder{{Group: "lab", Dir: group, GPUs: []GPUStatus{
		{UUID: uuid, MemoryLimitBytes: 1 << 30, ComputeLimitPPM: 300_000, Processes: []ProcessStatus{}},
	}}}
	got, err := Status(Places{RunDir: run, RunPages: group})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("in a run: %s", diff)
	}

	pages(t, run, 2<<30, limits.NoComputeLimit)
	want = []Holder{{Dir: run, GPUs: []GPUStatus{
		{UUID: uuid, MemoryLimitBytes: 2 << 30, Processes: []ProcessStatus{}},
	}}}
	got, err = Status(Places{RunDir: run, RunPages: group})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("in a container: %s", diff)
	}
}

func TestStatusOfNode(t *testing.T) {
	run, groups := t.TempDir(), t.TempDir()
	container := func(pod, name string) string { return filepath.Join(run, "containers", pod, name) }
	pages(t, container("uid-1", "a"), 1<<30, limits.NoComputeLimit)
	pages(t, container("uid-2", "b"), 1<<30, 300_000)
	pages(t, filepath.Join(groups, "lab"), 2<<30, 55_500)
	pages(t, container("uid-3", "broken"), 1<<30, 300_000)
	if err := os.MkdirAll(container("uid-4", "not yet"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := limits.Update(filepath.Join(groups, "lab"), []limits.Device{{UUID: uuid, MemoryBytes: 2 << 30, ComputePPM: 55_500, MaximumPPM: 500_000}}); err != nil {
		t.Fatal(err)
	}
	writeAssignment(t, container("uid-1", "a"), placement.Allocation{Namespace: "ns", Pod: "web", PodUID: "uid-1", Container: "a"})
	if err := os.WriteFile(filepath.Join(container("uid-3", "broken"), limits.LimitsFile), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}

	got, err := Status(Places{RunDir: run, Groups: groups})
	if err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("got error %v, want the broken page named", err)
	}
	var table bytes.Buffer
	if err := WriteTable(&table, got); err != nil {
		t.Fatal(err)
	}
	const want = `HOLDER    GPU                                       MEMORY  LIMIT     TIME LIMIT  GPU TIME  REFUSALS  PROCESSES
ns/web/a  GPU-00000000-0000-0000-0000-000000000001  0 MiB   1024 MiB  -           0.0s      0         0
uid-2/b   GPU-00000000-0000-0000-0000-000000000001  0 MiB   1024 MiB  30 %        0.0s      0         0
run lab   GPU-00000000-0000-0000-0000-000000000001  0 MiB   2048 MiB  5.55-50 %   0.0s      0         0
`
	if diff := cmp.Diff(want, table.String()); diff != "" {
		t.Error(diff)
	}

	out, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	var back []Holder
	if err := json.Unmarshal(out, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got, back); diff != "" {
		t.Error(diff)
	}
}

// writeAssignment writes the pod's names in the agent's format.
func writeAssignment(t *testing.T, dir string, a placement.Allocation) {
	t.Helper()
	data, err := json.Marshal(map[string]any{"version": 1, "allocation": a})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "assignment.json"), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestStatusOfNothing(t *testing.T) {
	got, err := Status(Places{RunDir: t.TempDir(), Groups: "/nonexistent"})
	if err != nil || len(got) != 0 {
		t.Fatalf("got %v, %v", got, err)
	}
	var table bytes.Buffer
	if err := WriteTable(&table, got); err != nil || table.String() != "No program has limits here.\n" {
		t.Errorf("got %q, %v", table.String(), err)
	}
	if list, err := json.Marshal(got); err != nil || string(list) != "[]" {
		t.Errorf("got %q, %v", list, err)
	}
}
