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
	if err := Write(path, sample()); err != nil {
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
		{"no heartbeat", `{"version":1}`, ErrForeign},
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

func TestReadTellsMissing(t *testing.T) {
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
