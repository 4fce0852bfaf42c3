// SPDX-License-Identifier: Apache-2.0

package local

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/contexts"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

func TestParseHeld(t *testing.T) {
	for answer, want := range map[string]gpu.HeldBytes{
		"":                        {},
		"7 100":                   {7: 100},
		"7 100 8 ? 9 0 7 1":       {7: 101, 9: 0},
		"7 ?":                     {},
		"7":                       nil,
		"7 100 8":                 nil,
		"x 100":                   nil,
		"7 -1":                    nil,
		"7 999999999999999999999": nil,
	} {
		got, err := parseHeld(answer)
		if diff := cmp.Diff(want, got); diff != "" || (err == nil) != (want != nil) {
			t.Errorf("%q: %s%v", answer, diff, err)
		}
	}
}

// TestRecallContexts checks that only sizes that were measured with this driver, in this pid
// namespace, are reused.
func TestRecallContexts(t *testing.T) {
	gpus := []GPU{{UUID: uuid, CUDAVersion: 13000}}
	known := contexts.Size{UUID: uuid, Driver: driverOf(gpus[0]), Bytes: 107 << 20, How: contexts.ByProcess, PIDNamespace: pidNamespace()}
	for name, tt := range map[string]struct {
		change func(*contexts.Size)
		bytes  uint64
		listed int
	}{
		"known":             {func(*contexts.Size) {}, 107 << 20, 1},
		"by the whole GPU":  {func(s *contexts.Size) { s.How = contexts.ByDevice }, 107 << 20, 0},
		"of another driver": {func(s *contexts.Size) { s.Driver = "before" }, 0, 1},
		"in a container":    {func(s *contexts.Size) { s.PIDNamespace++ }, 0, 0},
		"of another GPU":    {func(s *contexts.Size) { s.UUID += "0" }, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			g := openGroups(t)
			size := known
			tt.change(&size)
			if err := contexts.WriteFile(g.contextsFile(), []contexts.Size{size}); err != nil {
				t.Fatal(err)
			}
			devices := ask(1 << 30)
			if all := g.recallContexts(gpus, devices); all != (tt.bytes > 0) || devices[0].ContextBytes != tt.bytes {
				t.Errorf("got %d, all %v", devices[0].ContextBytes, all)
			}
			if got := g.listed(devices); len(got) != tt.listed {
				t.Errorf("NVML is believed for %v", got)
			}
		})
	}
}

// TestFailuresAreRemembered checks that runs start without a measurement for a while after a failed
// measurement of a GPU.
func TestFailuresAreRemembered(t *testing.T) {
	g := openGroups(t)
	lib := t.TempDir() // without the programs
	failed := filepath.Join(g.dir, contextsFailed)
	at := func() time.Time {
		t.Helper()
		info, err := os.Stat(failed)
		if err != nil {
			t.Fatal(err)
		}
		return info.ModTime()
	}
	size := func() {
		t.Helper()
		devices := ask(1 << 30)
		g.sizeContexts(t.Context(), lib, nil, devices)
		if devices[0].ContextBytes != 0 {
			t.Errorf("got %d bytes", devices[0].ContextBytes)
		}
	}
	size()
	recent := time.Now().Add(-failedFor / 2)
	if err := os.Chtimes(failed, recent, recent); err != nil {
		t.Fatal(err)
	}
	if size(); !at().Equal(recent) {
		t.Error("it was tried again within a minute")
	}
	old := time.Now().Add(-2 * failedFor)
	if err := os.Chtimes(failed, old, old); err != nil {
		t.Fatal(err)
	}
	if size(); !at().After(recent) {
		t.Error("it was never tried again")
	}
}

// TestJoinLeavesContextsAlone checks that a run joins a group even if the context's size was
// measured after the group was made.
func TestJoinLeavesContextsAlone(t *testing.T) {
	g := openGroups(t)
	join(t, g, "lab", ask(1<<30))
	want := ask(1 << 30)
	want[0].ContextBytes = 107 << 20
	join(t, g, "lab", want)
	if got, err := limits.Read(filepath.Join(g.Dir("lab"), limits.LimitsFile)); err != nil || got[0].ContextBytes != 0 {
		t.Errorf("the page has %+v, %v", got, err)
	}
}

func TestWatched(t *testing.T) {
	g := openGroups(t)
	join(t, g, "lab", ask(1<<30))
	if g.watched("lab") {
		t.Error("no watcher runs")
	}
	done := make(chan error)
	lock, err := lockFile(filepath.Join(g.Dir("lab"), watcherFile), os.O_CREATE, unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	if !g.watched("lab") {
		t.Error("it is watched")
	}
	// A second watcher waits. The second watcher ends if the group was removed
	// meanwhile.
	go func() { done <- g.watch("lab") }()
	time.Sleep(20 * time.Millisecond)
	if err := os.RemoveAll(g.Dir("lab")); err != nil {
		t.Fatal(err)
	}
	lock.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
