// SPDX-License-Identifier: Apache-2.0

package contexts

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

const mib = 1 << 20

// fake is a driver and a maker of contexts. The fake's child has pid 42.
type fake struct {
	context uint64   // the size of a context
	lists   bool     // whether NVML lists the memory of processes
	others  []uint64 // the use of the GPU by others, at each query of the whole GPU
	makeErr error
	usedErr error
	hang    bool

	looks, made, ended int
}

func (f *fake) Held(string) (gpu.HeldBytes, error) {
	if !f.lists {
		return gpu.HeldBytes{}, nil
	}
	return gpu.HeldBytes{42: f.context * uint64(f.made-f.ended), 43: 7}, nil
}

func (f *fake) Used(string) (uint64, error) {
	if f.hang {
		select {}
	}
	used := f.context * uint64(f.made-f.ended)
	if len(f.others) > 0 {
		used += f.others[f.looks%len(f.others)]
	}
	f.looks++
	return used, f.usedErr
}

func (f *fake) Make(context.Context, string) (Made, error) {
	if f.makeErr != nil {
		return nil, f.makeErr
	}
	f.made++
	return f, nil
}

func (f *fake) PID() int                  { return 42 }
func (f *fake) End(context.Context) error { f.ended++; return nil }

func TestMeasure(t *testing.T) {
	for name, tt := range map[string]struct {
		fake  fake
		bytes uint64
		how   string
		made  int
		err   string
	}{
		"NVML lists it":                {fake{context: 107 * mib, lists: true}, 107 * mib, ByProcess, 1, ""},
		"beside others, NVML lists it": {fake{context: 107 * mib, lists: true, others: []uint64{0, 9 << 30}}, 107 * mib, ByProcess, 1, ""},
		"not available":                {fake{context: 512 * mib}, 512 * mib, ByDevice, 2, ""},
		"not available, one intrudes": {
			fake{context: 512 * mib, others: []uint64{0, 300 * mib, 300 * mib, 300 * mib, 300 * mib, 300 * mib}}, 512 * mib, ByDevice, 3, ""},
		"not available, no peace":      {fake{context: 512 * mib, others: []uint64{0, 1 << 30, 0, 2 << 30, 0, 3 << 30, 0, 4 << 30, 0, 5 << 30}}, 0, "", 5, "other processes use it"},
		"the GPU is full":              {fake{makeErr: errors.New("CUDA_ERROR_OUT_OF_MEMORY")}, 0, "", 0, "OUT_OF_MEMORY"},
		"NVML reports nothing":         {fake{usedErr: errors.New("GPU is lost")}, 0, "", 0, "lost"},
		"a context that takes nothing": {fake{context: 4096, lists: true}, 0, "", 1, "a size of 4096 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			m := Measurer{Driver: &tt.fake, Maker: &tt.fake}
			size, err := m.Measure(t.Context(), "GPU-a")
			if size.Bytes != tt.bytes || size.How != tt.how || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %+v, %v", size, err)
			}
			if tt.fake.made != tt.made || tt.fake.ended != tt.made {
				t.Errorf("%d contexts were made and %d ended, want %d", tt.fake.made, tt.fake.ended, tt.made)
			}
		})
	}
}

func TestNVMLThatHangsIsNotWaitedFor(t *testing.T) {
	m := Measurer{Driver: &fake{hang: true}, Maker: &fake{}}
	for range 2 { // the second measurement starts while the first call is still running
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if _, err := m.Measure(ctx, "GPU-a"); err == nil {
			t.Error("it was measured")
		}
		cancel()
	}
}

func sizes(t *testing.T, f *fake, change func(*Options)) *Sizes {
	t.Helper()
	o := Options{
		Measurer: &Measurer{Driver: f, Maker: f}, Version: func() (string, error) { return "580.1", nil },
		File: filepath.Join(t.TempDir(), "state", "contexts.json"), Log: slog.New(slog.DiscardHandler),
	}
	change(&o)
	return New(o)
}

var gpus = []gpu.GPU{{UUID: "GPU-a", Healthy: true}, {UUID: "GPU-b"}, {UUID: "GPU-c", Healthy: true}}

// TestSizesAreKept checks that the agent stores sizes, and that the next agent measures again only
// if the driver has changed.
func TestSizesAreKept(t *testing.T) {
	first := &fake{context: 107 * mib, lists: true}
	s := sizes(t, first, func(*Options) {})
	if s.Of("GPU-a") != 0 || s.Tried("GPU-a") {
		t.Error("a size is known that was not measured")
	}
	s.Prepare(t.Context(), gpus)
	s.Prepare(t.Context(), gpus)
	if s.Of("GPU-a") != 107*mib || s.Of("GPU-b") != 0 || s.Of("GPU-c") != 107*mib || first.made != 2 {
		t.Errorf("got %d, %d and %d, %d contexts", s.Of("GPU-a"), s.Of("GPU-b"), s.Of("GPU-c"), first.made)
	}

	for _, tt := range []struct {
		driver string
		want   uint64
		made   int
	}{{"580.1", 107 * mib, 0}, {"590.2", 300 * mib, 2}, {"580.1", 300 * mib, 2}} {
		later := &fake{context: 300 * mib, lists: true}
		next := sizes(t, later, func(o *Options) { o.File, o.Version = s.File, func() (string, error) { return tt.driver, nil } })
		next.Prepare(t.Context(), gpus)
		if got := next.Of("GPU-a"); got != tt.want || later.made != tt.made {
			t.Errorf("with driver %s: %d bytes after %d contexts, want %d after %d", tt.driver, got, later.made, tt.want, tt.made)
		}
	}
}

func TestWhatCannotBeMeasured(t *testing.T) {
	f := &fake{context: 107 * mib, lists: true}
	room := false
	s := sizes(t, f, func(o *Options) { o.Room = func(string) bool { return room } })
	s.Prepare(t.Context(), gpus)
	if f.made != 0 || s.Of("GPU-a") != 0 || !s.Tried("GPU-a") {
		t.Errorf("where containers have all memory: %d contexts, %d bytes, tried %v", f.made, s.Of("GPU-a"), s.Tried("GPU-a"))
	}
	room = true
	s.Prepare(t.Context(), gpus)
	if f.made != 0 {
		t.Error("the failed measurement was repeated at once")
	}
	s.GPUs = func() []gpu.GPU { return gpus }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	eventually.Holds(t, 10*time.Second, "the GPU that came later is measured", func() bool { return s.Of("GPU-c") != 0 })
	cancel()
	<-done
	if s.Of("GPU-a") != 107*mib || s.Of("GPU-c") != 107*mib {
		t.Errorf("later: %d and %d bytes", s.Of("GPU-a"), s.Of("GPU-c"))
	}

	unknown := sizes(t, f, func(o *Options) { o.Version = func() (string, error) { return "", errors.New("no driver") } })
	unknown.Prepare(t.Context(), gpus)
	if unknown.Of("GPU-a") != 0 || !unknown.Tried("GPU-a") {
		t.Error("a driver without a version was measured")
	}
}

// TestASlowDriver checks that a slow driver delays the callers of Prepare once, and the GPU does
// not count as tried.
func TestASlowDriver(t *testing.T) {
	s := sizes(t, &fake{hang: true}, func(*Options) {})
	for i, longest := range []time.Duration{time.Second, 10 * time.Millisecond, 10 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		begin := time.Now()
		s.Prepare(ctx, gpus)
		cancel()
		if took := time.Since(begin); took > longest {
			t.Errorf("number %d took %v", i, took)
		}
	}
	if s.Tried("GPU-a") {
		t.Error("it is taken for tried")
	}
}

// TestOverride checks that the configured size takes precedence, and no measurement takes place.
func TestOverride(t *testing.T) {
	f := &fake{context: 107 * mib, lists: true}
	s := sizes(t, f, func(o *Options) { o.Override = 64 * mib })
	s.Prepare(t.Context(), gpus)
	if s.Of("GPU-a") != 64*mib || !s.Tried("GPU-a") || f.made != 0 {
		t.Errorf("got %d, %d contexts", s.Of("GPU-a"), f.made)
	}
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "contexts.json")
	if got, err := ReadFile(path); got != nil || err != nil {
		t.Errorf("without a file: %v, %v", got, err)
	}
	want := []Size{{UUID: "GPU-a", Driver: "1", Bytes: 5 * mib, How: ByDevice}, {UUID: "GPU-b", Driver: "1", Bytes: 6 * mib, How: ByProcess, PIDNamespace: 3}}
	if err := WriteFile(path, []Size{want[1], want[0]}); err != nil {
		t.Fatal(err)
	}
	got, err := ReadFile(path)
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" || err != nil {
		t.Error(diff, err)
	}
	for name, content := range map[string]string{
		"empty": "", "cut off": `{"version":1,"contexts":[{"uu`, "another version": `{"version":2}`, "no object": "[]",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadFile(path); err == nil || got != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	absurd := `{"version":1,"contexts":[{"uuid":"GPU-a","driver":"1","bytes":5},{"uuid":"GPU-b","bytes":99999999999999}]}`
	if err := os.WriteFile(path, []byte(absurd), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadFile(path); err != nil || len(got) != 0 {
		t.Errorf("absurd sizes: %v, %v", got, err)
	}
	// The agent ignores an unreadable file, and measures the sizes again.
	if err := os.WriteFile(path, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := sizes(t, &fake{context: 5 * mib, lists: true}, func(o *Options) { o.File = path })
	s.Prepare(t.Context(), gpus)
	if s.Of("GPU-a") != 5*mib {
		t.Errorf("with a corrupt file: %d", s.Of("GPU-a"))
	}
}
