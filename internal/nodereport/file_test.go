// SPDX-License-Identifier: Apache-2.0

package nodereport

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

func sample() Report {
	return Report{
		Version:          FormatVersion,
		Heartbeat:        time.Date(2026, 3, 1, 12, 0, 0, 500, time.UTC),
		PluginRegistered: true,
		AgentVersion:     "1.2.3",
		GPUs:             []gpu.GPU{{UUID: "GPU-1", Name: "NVIDIA H200", MemoryBytes: 1 << 30, Healthy: true}},
		Sums: &Sums{
			Used: map[string]int64{"nri-vgpu.io/vgpu-memory": 512},
			Free: map[string]int64{"nri-vgpu.io/vgpu-memory": 512},
		},
	}
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	written := sample()
	written.Version = 0 // Write sets the version
	if err := Write(path, written); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sample(), got); diff != "" {
		t.Error(diff)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o644 {
		t.Errorf("mode is %v, the patcher needs 0644", info.Mode())
	}
}

func TestReadRefuses(t *testing.T) {
	tests := []struct {
		name, content string
		want          error
	}{
		{"empty", "", ErrCorrupt},
		{"truncated", `{"version":1,"heartbeat":"2026-03-01T12:00`, ErrCorrupt},
		{"trailing", `{"version":1,"heartbeat":"2026-03-01T12:00:00Z"} {}`, ErrCorrupt},
		{"binary", "\x00\x01\x02", ErrCorrupt},
		{"endless", strings.Repeat(" ", maxSize+1), ErrCorrupt},
		{"list", "[1]", ErrForeign},
		{"no version", `{"heartbeat":"2026-03-01T12:00:00Z"}`, ErrForeign},
		{"a version that is no number", `{"version":"1","heartbeat":"2026-03-01T12:00:00Z"}`, ErrForeign},
		{"no heartbeat", `{"version":1}`, ErrForeign},
		{"the zero time", `{"version":1,"heartbeat":"0001-01-01T00:00:00Z"}`, ErrForeign},
		{"GPUs that are no list", `{"version":1,"heartbeat":"2026-03-01T12:00:00Z","gpus":1}`, ErrForeign},
		{"future", `{"version":2,"heartbeat":"2026-03-01T12:00:00Z","cats":3}`, ErrVersion},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), FileName)
			if err := os.WriteFile(path, []byte(tt.content), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Read(path)
			if !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if err != nil && !strings.Contains(err.Error(), path) {
				t.Errorf("%q does not name the file", err)
			}
		})
	}
}

// TestReadIgnoresNewFields checks that an older patcher can read the report of a newer agent with
// the same format version.
func TestReadIgnoresNewFields(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	if err := Write(path, sample()); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	newer := strings.Replace(string(data), "{", `{"cats":3,`, 1)
	newer = strings.Replace(newer, `"uuid":`, `"dogs":{"name":"Rex"},"uuid":`, 1)
	if !strings.Contains(newer, "cats") || !strings.Contains(newer, "dogs") {
		t.Fatalf("no field was added to %s", data)
	}
	if err := os.WriteFile(path, []byte(newer), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sample(), got); diff != "" {
		t.Error(diff)
	}
}

// TestReadOfAnotherVersion checks that Read returns the version and the heartbeat of a report in
// another format.
func TestReadOfAnotherVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	if err := os.WriteFile(path, []byte(`{"version":2,"heartbeat":"2026-03-01T12:00:00Z","agentVersion":"9"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path)
	want := Report{Version: 2, Heartbeat: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	if diff := cmp.Diff(want, got); !errors.Is(err, ErrVersion) || diff != "" {
		t.Errorf("%v, %s", err, diff)
	}
}

// TestReadBoundsTheLength checks that Read accepts a report of maxSize bytes, and no larger report.
func TestReadBoundsTheLength(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	report := `{"version":1,"heartbeat":"2026-03-01T12:00:00Z"}`
	for length, want := range map[int]error{maxSize: nil, maxSize + 1: ErrCorrupt} {
		if err := os.WriteFile(path, []byte(report+strings.Repeat(" ", length-len(report))), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path); !errors.Is(err, want) {
			t.Errorf("%d bytes: %v, want %v", length, err, want)
		}
	}
}

// TestFailuresOfFilesAreErrors checks a path without a directory, a path that is a directory, and a report
// that has no encoding.
func TestFailuresOfFilesAreErrors(t *testing.T) {
	dir := t.TempDir()
	if err := Write(filepath.Join(dir, "none", FileName), sample()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("writing to a missing directory: %v", err)
	}
	if err := Write(filepath.Join(dir, FileName), Report{Heartbeat: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}); err == nil {
		t.Error("a time that JSON cannot contain is written")
	}
	if _, err := Read(dir); err == nil {
		t.Error("a directory is read as a report")
	}
}

func TestReadDetectsAMissingReport(t *testing.T) {
	_, err := Read(filepath.Join(t.TempDir(), "none"))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestReadersNeverSeeAPart(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	if err := Write(path, sample()); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 200 {
			if err := Write(path, sample()); err != nil {
				t.Error(err)
			}
		}
	})
	for range 200 {
		if _, err := Read(path); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
}
