// SPDX-License-Identifier: Apache-2.0

package driverlib

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/interposer/symbols"
)

// TestNodeFollowsTheDriver checks that the libraries follow the driver, whether the driver is
// absent, installed or replaced.
func TestNodeFollowsTheDriver(t *testing.T) {
	dir := t.TempDir()
	at := filepath.Join(dir, cuda.Name)
	var seen []Variant
	var errs []error
	plain := filepath.Join(build, "lib")
	n := Node{
		Plain: plain, Parent: filepath.Join(dir, "drivers"),
		Find: func() Paths {
			if _, err := os.Stat(at); err != nil {
				return Paths{}
			}
			return Paths{cuda.Name: at}
		},
		Changed: func(v Variant, err error) { seen, errs = append(seen, v), append(errs, err) },
	}
	put := func(names ...string) {
		path := driver(t, cuda, append([]string{"cuInit", "cuGetProcAddress", "cuMemAlloc_v2"}, names...)...)
		if err := os.Rename(path, at); err != nil {
			t.Fatal(err)
		}
		// The second of two files must be newer, even if both are written at
		// once.
		when := time.Now().Add(time.Duration(len(seen)) * time.Minute)
		if err := os.Chtimes(at, when, when); err != nil {
			t.Fatal(err)
		}
	}
	if got := n.Dir(); got != plain || n.Dir() != plain || len(seen) != 1 || errs[0] == nil || seen[0].Found() {
		t.Fatalf("without a driver: %s, %+v, %v", got, seen, errs)
	}
	put("cuFrobnicate")
	first := n.Dir()
	if first == plain || n.Dir() != first || len(seen) != 2 || !strings.Contains(seen[1].Summary(), "passed on: cuFrobnicate") {
		t.Fatalf("with a driver: %s, %+v, %v", first, seen, errs)
	}
	put("cuFrobnicate", "cuMemAllocFrob")
	second := n.Dir()
	if second == first || len(seen) != 3 || !strings.HasPrefix(seen[2].Summary(), "refused: cuMemAllocFrob; passed on: ") {
		t.Fatalf("with another driver: %s, %+v, %v", second, seen, errs)
	}
	if names := exportsAt(t, first); !slices.Contains(names, "cuFrobnicate") || slices.Contains(names, "cuMemAllocFrob") {
		t.Errorf("the first driver's libraries changed: %v", names)
	}
	if err := os.Remove(at); err != nil {
		t.Fatal(err)
	}
	if got := n.Dir(); got != plain || len(seen) != 4 {
		t.Errorf("when the driver is gone: %s", got)
	}
}

// TestAFullDiskDelaysTheLibraries checks that libraries that could not be written are written later, and
// that a repeated failure is reported once.
func TestAFullDiskDelaysTheLibraries(t *testing.T) {
	dir, plain, reports := t.TempDir(), filepath.Join(build, "lib"), 0
	at := driver(t, cuda, "cuInit", "cuGetProcAddress", "cuMemAlloc_v2")
	n := Node{
		Plain: plain, Parent: filepath.Join(dir, "drivers"),
		Find:    func() Paths { return Paths{cuda.Name: at} },
		Changed: func(Variant, error) { reports++ },
	}
	if err := os.WriteFile(n.Parent, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	later := func() string {
		n.tried = n.tried.Add(-retryPause)
		return n.Dir()
	}
	if n.Dir() != plain || later() != plain || reports != 1 {
		t.Fatalf("beside a file, %d reports", reports)
	}
	if err := os.Remove(n.Parent); err != nil {
		t.Fatal(err)
	}
	if n.Dir() != plain {
		t.Error("no pause before another attempt")
	}
	if later() == plain || reports != 2 {
		t.Errorf("the libraries are those as built, and there were %d reports", reports)
	}
	n.tried = n.tried.Add(-retryPause)
	if made := n.Dir(); made == plain || reports != 2 {
		t.Errorf("%s after %d reports", made, reports)
	}
}

// TestALeaseDelaysNoLibraries checks that leases on the files of nri-vgpu and of the driver do not delay
// the agent. After the end of a lease, the agent makes the libraries.
func TestALeaseDelaysNoLibraries(t *testing.T) {
	dir := t.TempDir()
	n := Node{Plain: filepath.Join(dir, "plain"), Parent: filepath.Join(dir, "drivers"), Changed: func(Variant, error) {}}
	if err := os.CopyFS(n.Plain, os.DirFS(filepath.Join(build, "lib"))); err != nil {
		t.Fatal(err)
	}
	at := driver(t, cuda, "cuInit", "cuGetProcAddress", "cuMemAlloc_v2")
	n.Find = func() Paths { return Paths{cuda.Name: at} }
	made := n.Dir()
	if made == n.Plain {
		t.Fatal("no libraries were made")
	}
	for _, c := range []struct{ path, want string }{
		{filepath.Join(made, cuda.Name), made},
		{filepath.Join(n.Plain, cuda.Name), n.Plain},
		{at, n.Plain},
	} {
		tenant, err := os.Open(c.path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(tenant.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
			t.Fatal(err)
		}
		n.seen = nil // as in another agent
		begin := time.Now()
		if got := n.Dir(); got != c.want {
			t.Errorf("with a lease on %s: %s, want %s", c.path, got, c.want)
		}
		if took := time.Since(begin); took > 20*time.Second {
			t.Errorf("with a lease on %s, the agent waited for %v", c.path, took)
		}
		if err := tenant.Close(); err != nil {
			t.Fatal(err)
		}
		n.tried = n.tried.Add(-retryPause)
		if got := n.Dir(); got != made {
			t.Errorf("after the end of the lease on %s: %s", c.path, got)
		}
	}
}

func exportsAt(t *testing.T, dir string) []string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, cuda.Name))
	if err != nil {
		t.Fatal(err)
	}
	return exportNames(t, content)
}

// TestMakeAgain checks that a second Make with the same input uses the existing directory.
func TestMakeAgain(t *testing.T) {
	parent := t.TempDir()
	paths := Paths{cuda.Name: driver(t, cuda, "cuInit", "cuGetProcAddress", "cuMemAlloc_v2")}
	first, _ := Make(filepath.Join(build, "lib"), parent, paths)
	before, err := os.Stat(filepath.Join(first.Dir, cuda.Name))
	if err != nil {
		t.Fatal(err)
	}
	second, _ := Make(filepath.Join(build, "lib"), parent, paths)
	after, err := os.Stat(filepath.Join(second.Dir, cuda.Name))
	if err != nil || first.Dir != second.Dir || !os.SameFile(before, after) {
		t.Errorf("made again: %s and %s, %v", first.Dir, second.Dir, err)
	}
	if entries, err := os.ReadDir(parent); err != nil || len(entries) != 1 {
		t.Errorf("left are %v, %v", entries, err)
	}
	// Make neither uses nor replaces a directory that another program changed.
	if err := os.WriteFile(filepath.Join(first.Dir, cuda.Name), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	third, err := Make(filepath.Join(build, "lib"), parent, paths)
	if err == nil || third.Dir != filepath.Join(build, "lib") || !strings.Contains(err.Error(), first.Dir) {
		t.Errorf("a damaged directory: %s, %v", third.Dir, err)
	}
}

func TestVariantIsWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "driver.json")
	want := Variant{Dir: "/d", Libraries: []Library{
		{Name: cuda.Name, Driver: "/x", Unknown: []Unknown{{"cuFrob", symbols.Pass}, {"cudbgFrob", ""}}},
		{Name: nvml.Name, Error: "why"},
	}}
	if err := want.Write(path); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := Read(path + "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a damaged file: %v", err)
	}
}

func TestSummaryIsShort(t *testing.T) {
	var unknown []Unknown
	for i := range 30 {
		unknown = append(unknown, Unknown{"cu" + string(rune('A'+i)), symbols.Refuse})
	}
	v := Variant{Libraries: []Library{{Unknown: unknown}, {Unknown: []Unknown{{"nvmlFrob", symbols.Pass}, {"cudbgFrob", ""}}}}}
	if got := v.Summary(); !strings.Contains(got, "and 10 more; missing: cudbgFrob; passed on: nvmlFrob") {
		t.Errorf("got %q", got)
	}
	if got := (Variant{}).Summary(); got != "" {
		t.Errorf("without names: %q", got)
	}
}

// TestLoaderCache checks that a loader's cache with wrong sizes yields its valid entries.
func TestLoaderCache(t *testing.T) {
	entry := func(name, path uint32) []byte {
		e := make([]byte, cacheEntrySize)
		e[4], e[5], e[8], e[9] = byte(name), byte(name>>8), byte(path), byte(path>>8)
		return e
	}
	head := append([]byte(cacheMagic), make([]byte, cacheHeadSize-len(cacheMagic))...)
	texts := "libcuda.so.1\x00/a/libcuda.so.1\x00libx.so\x00/a/libx.so\x00"
	base := uint32(cacheHeadSize + 3*cacheEntrySize)
	cache := slices.Concat(head, entry(base+29, base+37), entry(base, base+13), entry(base, 60000), []byte(texts))
	for name, c := range map[string]struct {
		count byte
		want  []string
	}{"whole": {3, []string{"/a/libcuda.so.1", ""}}, "few": {2, []string{"/a/libcuda.so.1"}}, "none": {0, nil}} {
		cache[len(cacheMagic)] = c.count
		if got := cached(slices.Concat([]byte("ld.so-1.7.0 and more"), cache), cuda.Name); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	cache[len(cacheMagic)+3] = 0xff
	for cut := range len(cache) {
		_ = cached(cache[:cut], cuda.Name)
	}
}

func TestFind(t *testing.T) {
	path := driver(t, cuda, "cuInit")
	env := map[string]string{"LD_LIBRARY_PATH": filepath.Join(build, "lib") + ":/nowhere;" + filepath.Dir(path)}
	if got := Find(func(name string) string { return env[name] }); got[cuda.Name] != path {
		t.Errorf("found %v, want %s and not our own", got, path)
	}
}
