package gpu

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// script is a driver that answers as told.
type script func() ([]GPU, error)

func (s script) list() ([]GPU, error) { return s() }

func two() []GPU {
	return []GPU{
		{UUID: "GPU-a", Index: 0, MemoryBytes: 1, Healthy: true},
		{UUID: "GPU-b", Index: 1, Minor: 1, MemoryBytes: 2, Healthy: true},
	}
}

func TestMerge(t *testing.T) {
	const gone = "the driver no longer lists this GPU"
	lost := func(g GPU, reason string) GPU { g.Healthy, g.Reason = false, reason; return g }
	tests := []struct {
		name              string
		known, seen, want []GPU
	}{
		{"first", nil, two(), two()},
		{"again", two(), two(), two()},
		{"recovered", []GPU{lost(two()[0], "x"), two()[1]}, two(), two()},
		{"one vanished", two(), two()[1:], []GPU{lost(two()[0], gone), two()[1]}},
		{"one lost its name", two(), []GPU{two()[0], {Index: 1, Reason: "lost"}}, []GPU{two()[0], lost(two()[1], "lost")}},
		{"one never had a name", nil, []GPU{two()[0], {Index: 1, Reason: "lost"}}, two()[:1]},
		{
			"renumbered",
			two(),
			[]GPU{{UUID: "GPU-b", Index: 0, Healthy: true}, {UUID: "GPU-a", Index: 1, Healthy: true}},
			[]GPU{{UUID: "GPU-b", Index: 0, Healthy: true}, {UUID: "GPU-a", Index: 1, Healthy: true}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, merge(tt.known, tt.seen)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAFailingDriverMakesGPUsUnhealthy(t *testing.T) {
	broken := errors.New("no driver")
	var fail error
	inv := newInventory(script(func() ([]GPU, error) { return two(), fail }), 0)
	if _, err := inv.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	fail = broken
	gpus, err := inv.Refresh(t.Context())
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	for _, g := range gpus {
		if g.Healthy || g.Reason != "no driver" || g.MemoryBytes == 0 {
			t.Errorf("got %+v", g)
		}
	}
	fail = nil
	if _, err := inv.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(two(), inv.GPUs()); diff != "" {
		t.Error(diff)
	}
}

func TestAHangingDriverHangsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		var hang chan struct{}
		inv := newInventory(script(func() ([]GPU, error) {
			calls.Add(1)
			if hang != nil {
				<-hang
			}
			return two(), nil
		}), time.Second)
		mustRefresh(t, inv)

		hang = make(chan struct{})
		for range 3 {
			begin := time.Now()
			gpus, err := inv.Refresh(context.Background())
			if err == nil || !strings.Contains(err.Error(), "not answer") {
				t.Errorf("got %v", err)
			}
			if waited := time.Since(begin); waited > time.Second {
				t.Errorf("waited %v", waited)
			}
			if len(gpus) != 2 || gpus[0].Healthy || gpus[1].Healthy {
				t.Errorf("got %+v", gpus)
			}
		}
		if calls := calls.Load(); calls != 2 {
			t.Errorf("%d calls were made of a driver that hangs in the second", calls)
		}
		close(hang)
		synctest.Wait()
		mustRefresh(t, inv)
		if diff := cmp.Diff(two(), inv.GPUs()); diff != "" {
			t.Error(diff)
		}
	})
}

func mustRefresh(t *testing.T, inv *Inventory) {
	t.Helper()
	if _, err := inv.Refresh(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func TestFindLibrary(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "usr/lib64")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := FindLibrary(root, "")
	var missing *LibraryError
	if !errors.As(err, &missing) || len(missing.Tried) != len(libraryDirs) {
		t.Fatalf("got %v", err)
	}
	want := filepath.Join(dir, libraryName)
	if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "driver.root") {
		t.Errorf("%q does not help", err)
	}
	if err := os.WriteFile(want, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := FindLibrary(root, ""); err != nil || got != want {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err := FindLibrary("/nowhere", want); err != nil || got != want {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := FindLibrary(root, "/nowhere/lib.so"); err == nil || !strings.Contains(err.Error(), "/nowhere/lib.so") {
		t.Errorf("got %v", err)
	}
}

func TestFindLibraryFollowsLinksInsideTheRoot(t *testing.T) {
	root := t.TempDir()
	lib, alternatives, nvidia := "usr/lib/x86_64-linux-gnu", "etc/alternatives", "usr/lib/x86_64-linux-gnu/nvidia/current"
	for _, dir := range []string{alternatives, nvidia} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	want := filepath.Join(root, nvidia, "libnvidia-ml.so.580.1")
	if err := os.WriteFile(want, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{
		lib + "/" + libraryName:     "/etc/alternatives/nvml",
		alternatives + "/nvml":      "/" + nvidia + "/" + libraryName,
		nvidia + "/" + libraryName:  "libnvidia-ml.so.580.1",
		"usr/lib64":                 "../../../../../../usr/lib64", // a loop
		"usr/lib/aarch64-linux-gnu": "/nowhere",
	} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := FindLibrary(root, ""); err != nil || got != want {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := resolve(root, "/usr/lib64/x"); err == nil {
		t.Error("a loop of links was followed")
	}
}

func TestCoresPerMultiprocessor(t *testing.T) {
	tests := []struct{ major, minor, want int }{
		{3, 5, 192}, {5, 2, 128}, {6, 0, 64}, {6, 1, 128}, {7, 0, 64}, {7, 5, 64}, {8, 0, 64}, {8, 6, 128}, {9, 0, 128}, {10, 0, 128},
	}
	for _, tt := range tests {
		if got := coresPerMultiprocessor(tt.major, tt.minor); got != tt.want {
			t.Errorf("%d.%d: got %d, want %d", tt.major, tt.minor, got, tt.want)
		}
	}
}

func TestBusID(t *testing.T) {
	var chars [32]int8
	for i, c := range "00000000:3B:00.0" {
		chars[i] = int8(c)
	}
	if got := busID(chars); got != "00000000:3B:00.0" {
		t.Errorf("got %q", got)
	}
}
