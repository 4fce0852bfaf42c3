// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
	"github.com/nri-vgpu/nri-vgpu/test/ownmounts"
)

const (
	gpuA = "GPU-00000000-0000-0000-0000-00000000000a"
	gpuB = "GPU-00000000-0000-0000-0000-00000000000b"
)

func newStore(t *testing.T) *Store {
	t.Helper()
	store, err := New(filepath.Join(t.TempDir(), "containers"))
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// block creates a non-empty directory at a file's path or, if file is set, a file at a
// directory's path.
func block(t *testing.T, path string, file bool) {
	t.Helper()
	dir := filepath.Dir(path)
	if !file {
		dir = filepath.Join(path, "inside")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if !file {
		return
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestWhatCannotBeWrittenIsAnError(t *testing.T) {
	save := func(s *Store) error { return s.Save(known(), nil, []string{"/lib/libcuda.so.1"}) }
	whole := func(s *Store) error { return s.SaveWhole(known()) }
	rewrite := func(s *Store) error { return s.Rewrite(known()) }
	reserve := func(s *Store) error { return s.Reserve("u", []placement.Allocation{known()}) }
	tests := []struct {
		name  string
		write func(*Store) error
		path  string // of the obstacle
		file  bool
	}{
		{"Save: the container's directory", save, "u/main", true},
		{"Save: the assignment", save, "u/main/" + assignmentFile, false},
		{"Save: the list of libraries", save, "u/main/" + paths.Preload, false},
		{"Save: the limits page", save, "u/main/" + limits.LimitsFile, false},
		{"SaveWhole: the container's directory", whole, "u/main", true},
		{"SaveWhole: the assignment", whole, "u/main/" + assignmentFile, false},
		{"SaveWhole: an old limits page", whole, "u/main/" + limits.LimitsFile, false},
		{"SaveWhole: an old usage page", whole, "u/main/" + limits.UsageFile, false},
		{"Rewrite: the container's directory", rewrite, "u/main", true},
		{"Rewrite: the assignment", rewrite, "u/main/" + assignmentFile, false},
		{"Reserve: the pod's directory", reserve, "u", true},
		{"Reserve: the list of assignments", reserve, "u/" + reservationFile, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			store := newStore(t)
			path := filepath.Join(store.dir, tt.path)
			block(t, path, tt.file)
			if err := tt.write(store); err == nil {
				t.Error("no error while something else is in its place")
			}
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			if err := tt.write(store); err != nil {
				t.Errorf("once it has gone: %v", err)
			}
			if all, errs := store.Load(); len(errs) > 0 || len(all) != 1 {
				t.Errorf("loaded %v, %v", all, errs)
			}
		})
	}
}

func TestNamesOfNoDirectoryAreNotWritten(t *testing.T) {
	store := newStore(t)
	bad := known()
	bad.PodUID = ".."
	for name, err := range map[string]error{
		"Save": store.Save(bad, nil, nil), "SaveWhole": store.SaveWhole(bad), "Rewrite": store.Rewrite(bad),
		"Reserve": store.Reserve("..", []placement.Allocation{bad}), "Remove": store.Remove(".."),
	} {
		if err == nil {
			t.Errorf("%s wrote files of pod %q", name, bad.PodUID)
		}
	}
	if store.Reserved("..") || store.HasFiles("..") {
		t.Error("a pod of this name has files")
	}
}

func TestPodsThatHaveFiles(t *testing.T) {
	store := newStore(t)
	for _, dir := range []string{"b/main", "a/main", ".hidden"} {
		if err := os.MkdirAll(filepath.Join(store.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(store.dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if uids, err := store.Pods(); err != nil || !slices.Equal(uids, []string{"a", "b"}) {
		t.Errorf("Pods() = %v, %v", uids, err)
	}
	if !store.HasFiles("a") || store.HasFiles("c") {
		t.Error("HasFiles does not find pod a alone")
	}
	if err := store.Reserve("a", nil); err != nil || !store.Reserved("a") || store.Reserved("b") {
		t.Errorf("Reserved does not find pod a alone: %v", err)
	}
	if err := store.Remove("a"); err != nil || store.HasFiles("a") || !store.HasFiles("b") {
		t.Errorf("pod a and no other was to be removed: %v", err)
	}
	// A missing store has no pods. Pods fails if it cannot list the store.
	if err := os.RemoveAll(store.dir); err != nil {
		t.Fatal(err)
	}
	if uids, err := store.Pods(); err != nil || len(uids) != 0 {
		t.Errorf("Pods() of no directory = %v, %v", uids, err)
	}
	block(t, store.dir, true)
	if _, err := store.Pods(); err == nil {
		t.Error("Pods() of a file is no error")
	}
	if _, err := New(store.dir); err == nil {
		t.Error("New() of a file is no error")
	}
}

func TestAssignmentsAreOfBoundedSize(t *testing.T) {
	store := newStore(t)
	if err := store.Rewrite(known()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(store.dir, "u", "main", assignmentFile)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		size int
		want error
	}{{maxAssignmentSize, nil}, {maxAssignmentSize + 1, errAssignmentCorrupt}} {
		padded := string(content) + strings.Repeat(" ", tt.size-len(content))
		if err := os.WriteFile(path, []byte(padded), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readAssignment(path); !errors.Is(err, tt.want) {
			t.Errorf("a file of %d bytes: %v, want %v", tt.size, err, tt.want)
		}
	}
}

func TestAnAssignmentThatCannotBeReadIsAnError(t *testing.T) {
	dir := t.TempDir()
	for name, path := range map[string]string{"missing": filepath.Join(dir, "missing"), "a directory": dir} {
		if a, err := readAssignment(path); err == nil {
			t.Errorf("%s: read as %+v", name, a)
		}
	}
}

// newer is an allocation written by a release with more fields.
const newer = `{"podUID":"u","namespace":"shop","pod":"web","container":"main","kind":"regular","position":1,"dialect":"nri-vgpu",` +
	`"cats":{"count":3},"devices":[{"uuid":"` + gpuA + `","memoryBytes":1073741824,"computePPM":300000,"slots":1,"dogs":["Rex"]}]}`

// known returns the part of newer that this release reads.
func known() placement.Allocation {
	return placement.Allocation{PodUID: "u", Namespace: "shop", Pod: "web", Container: "main", Kind: request.Kind("regular"),
		Position: 1, Dialect: "nri-vgpu", Devices: []placement.Device{{UUID: gpuA, MemoryBytes: 1 << 30, ComputePPM: 300_000, Slots: 1}}}
}

// storeWith returns a store with an assignment of container main of pod u.
func storeWith(t *testing.T, content string) (*Store, string) {
	t.Helper()
	store, err := New(filepath.Join(t.TempDir(), "containers"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(store.dir, "u", "main", assignmentFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return store, path
}

// TestNewFieldsOfAnAssignmentAreIgnored checks that the store reads an assignment with the fields
// of a newer release, as an agent does after a rollback.
func TestNewFieldsOfAnAssignmentAreIgnored(t *testing.T) {
	store, _ := storeWith(t, fmt.Sprintf(`{"version":1,"next":true,"sha256":%q,"allocation":%s}`, checksum([]byte(newer)), newer))
	allocations, errs := store.Load()
	if diff := cmp.Diff([]placement.Allocation{known()}, allocations); diff != "" || len(errs) > 0 {
		t.Errorf("%v (-want +got):\n%s", errs, diff)
	}
	// The annotation of a running container has the allocation of the file.
	var a placement.Allocation
	if err := json.Unmarshal([]byte(newer), &a); err != nil || !cmp.Equal(known(), a) {
		t.Errorf("the annotation is read as %+v: %v", a, err)
	}
}

// TestAssignmentsOfANewerReleaseStay checks that the store keeps an assignment in the format of a
// newer release until the current release assigns GPUs to the container.
func TestAssignmentsOfANewerReleaseStay(t *testing.T) {
	content := fmt.Sprintf(`{"version":%d,"sha256":"","gpus":[]}`, assignmentVersion+1)
	store, path := storeWith(t, content)
	for range 2 {
		allocations, errs := store.Load()
		if len(allocations) > 0 || len(errs) != 1 || !errors.Is(errs[0], ErrVersion) || !strings.Contains(errs[0].Error(), path) {
			t.Errorf("got %v, %v", allocations, errs)
		}
		if kept, err := os.ReadFile(path); err != nil || string(kept) != content {
			t.Fatalf("%s has %q: %v", path, kept, err)
		}
	}
	if err := store.Reserve(known().PodUID, []placement.Allocation{known()}); err != nil {
		t.Fatal(err)
	}
	if allocations, errs := store.Load(); !cmp.Equal([]placement.Allocation{known()}, allocations) || len(errs) != 1 {
		t.Errorf("reserved are %+v: %v", allocations, errs)
	}
}

// TestAContainersFileGoesBeforeItsPods checks that a container's own file takes precedence: the
// file contains the actual assignment of a running container.
func TestAContainersFileGoesBeforeItsPods(t *testing.T) {
	store, err := New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	on := func(container, uuid string) placement.Allocation {
		return placement.Allocation{PodUID: "u", Container: container, Kind: "app", Devices: []placement.Device{{UUID: uuid}}}
	}
	if err := store.Reserve("u", []placement.Allocation{on("a", gpuA), on("b", gpuA)}); err != nil {
		t.Fatal(err)
	}
	if err := store.Rewrite(on("a", gpuB)); err != nil {
		t.Fatal(err)
	}
	all, errs := store.Load()
	if len(errs) > 0 || len(all) != 2 || all[0].Devices[0].UUID != gpuB || all[1].Devices[0].UUID != gpuA {
		t.Errorf("loaded %+v, %v", all, errs)
	}
	// The store trusts no file of another pod, and no damaged file.
	if err := store.Reserve("v", []placement.Allocation{on("a", gpuA)}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(store.dir, "u", reservationFile), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if all, errs := store.Load(); len(errs) != 2 || len(all) != 1 || all[0].Devices[0].UUID != gpuB {
		t.Errorf("loaded %+v, %v", all, errs)
	}
}

func TestBadFilesArePutAside(t *testing.T) {
	good := `{"version":1,"sha256":"`
	for name, content := range map[string]string{
		"empty":     "",
		"truncated": good,
		"forged":    `{"version":1,"sha256":"00","allocation":{"podUID":"u","container":"main","kind":"app","devices":[]}}`,
		"a list":    fmt.Sprintf(`{"version":1,"sha256":%q,"allocation":[]}`, checksum([]byte("[]"))),
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "containers")
			store, err := New(dir)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "u", "main", assignmentFile)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if a, err := store.Assignment("u", "main"); !errors.Is(err, errAssignmentCorrupt) {
				t.Errorf("read as %+v: %v", a, err)
			}
			allocations, errs := store.Load()
			if len(allocations) != 0 || len(errs) != 1 || !strings.Contains(errs[0].Error(), path) {
				t.Errorf("got %v, %v", allocations, errs)
			}
			if _, err := os.Stat(path); !os.IsNotExist(err) {
				t.Error("it is still in its place")
			}
			if _, errs := store.Load(); len(errs) != 0 {
				t.Errorf("the second time: %v", errs)
			}
		})
	}
}

func TestNamesThatLeadElsewhereAreRefused(t *testing.T) {
	store, err := New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", ".", "..", "../x", "a/b", "/", ".hidden", "a\x00b", strings.Repeat("x", 300)} {
		if _, err := store.Dir(name, "main"); err == nil {
			t.Errorf("pod %q was taken", name)
		}
		if _, err := store.Dir("u", name); err == nil {
			t.Errorf("container %q was taken", name)
		}
		if store.Remove(name) == nil && len(name) < 300 {
			t.Errorf("pod %q was removed", name)
		}
	}
}

// TestEachGPUHasItsOwnContext checks that PageDevices returns the size of a context for each GPU,
// also for clients of MPS.
func TestEachGPUHasItsOwnContext(t *testing.T) {
	store, err := New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	given := placement.Allocation{Devices: []placement.Device{{UUID: "GPU-a"}, {UUID: "GPU-b", MPS: true}, {UUID: "GPU-c"}}}
	sizes := map[string]uint64{"GPU-a": 107 << 20, "GPU-b": 512 << 20}
	for _, want := range []map[string]uint64{{}, sizes} {
		for _, d := range store.PageDevices(given, nil) {
			if d.ContextBytes != want[d.UUID] {
				t.Errorf("%s: a context of %d bytes, want %d", d.UUID, d.ContextBytes, want[d.UUID])
			}
		}
		store.ContextBytes = func(uuid string) uint64 { return sizes[uuid] }
	}
}

// TestNamesMayBeAsLongAsADirectorys checks that a name may have 255 bytes, the most that the file
// system allows.
func TestNamesMayBeAsLongAsADirectorys(t *testing.T) {
	store := newStore(t)
	for length, valid := range map[int]bool{255: true, 256: false} {
		name := strings.Repeat("x", length)
		_, pod := store.Dir(name, "main")
		_, container := store.Dir("u", name)
		for what, err := range map[string]error{"pod": pod, "container": container, "reserved pod": store.Reserve(name, nil)} {
			if (err == nil) != valid {
				t.Errorf("%s with a name of %d bytes: %v", what, length, err)
			}
		}
	}
}

// TestWhoMayReadTheFiles checks that containers can read their pages and the list of libraries, and
// that only root can read assignments, whatever the umask is.
func TestWhoMayReadTheFiles(t *testing.T) {
	for _, umask := range []int{0, 0o077} {
		before := syscall.Umask(umask)
		t.Cleanup(func() { syscall.Umask(before) })
		store := newStore(t)
		if err := errors.Join(store.Save(known(), nil, []string{"/lib/a.so"}), store.Reserve("u", nil)); err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]fs.FileMode{
			".":                          0o755 &^ fs.FileMode(umask),
			"u":                          0o755 &^ fs.FileMode(umask),
			"u/main":                     0o755 &^ fs.FileMode(umask),
			"u/" + reservationFile:       0o600,
			"u/main/" + assignmentFile:   0o600,
			"u/main/" + paths.Preload:    0o644,
			"u/main/" + limits.UsageFile: 0o666,
		} {
			info, err := os.Stat(filepath.Join(store.dir, path))
			if err != nil {
				t.Error(err)
			} else if info.Mode().Perm() != want {
				t.Errorf("with umask %#o, %s has mode %#o, want %#o", umask, path, info.Mode().Perm(), want)
			}
		}
	}
}

func TestAssignmentOfOneContainer(t *testing.T) {
	store := newStore(t)
	if err := store.Save(known(), nil, nil); err != nil {
		t.Fatal(err)
	}
	if a, err := store.Assignment("u", "main"); err != nil || !cmp.Equal(known(), a) {
		t.Errorf("read as %+v: %v", a, err)
	}
	if a, err := store.Assignment("u", "side"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a container without a file has %+v: %v", a, err)
	}
	// Without a check, the name x/../u would lead to the same file.
	if a, err := store.Assignment("x/../u", "main"); err == nil {
		t.Errorf("a pod with a path for a name has %+v", a)
	}
}

func TestAFileThatStaysIsAnErrorWithBothReasons(t *testing.T) {
	path := filepath.Join(t.TempDir(), "missing")
	err := newStore(t).putAside(path, errAssignmentForeign)
	if !errors.Is(err, errAssignmentForeign) || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
}

// TestPagesHaveTheLimitsOfEachGPU checks that only clients of the Multi-Process Service get the
// number of multiprocessors.
func TestPagesHaveTheLimitsOfEachGPU(t *testing.T) {
	given := placement.Allocation{Devices: []placement.Device{
		{UUID: gpuA, MemoryBytes: 1 << 30, ComputePPM: 300_000, MaximumPPM: 500_000},
		{UUID: gpuA, MemoryBytes: 2 << 30, MPS: true},
		{UUID: gpuB, MemoryBytes: 3 << 30, MPS: true},
	}}
	want := []limits.Device{
		{UUID: gpuA, MemoryBytes: 1 << 30, ComputePPM: 300_000, MaximumPPM: 500_000},
		{UUID: gpuA, MemoryBytes: 2 << 30, ComputePPM: limits.NoComputeLimit, MPS: true, Multiprocessors: 108},
		{UUID: gpuB, MemoryBytes: 3 << 30, ComputePPM: limits.NoComputeLimit, MPS: true},
	}
	gpus := []gpu.GPU{{UUID: "GPU-x", Multiprocessors: 16}, {UUID: gpuA, Multiprocessors: 108}}
	if diff := cmp.Diff(want, newStore(t).PageDevices(given, gpus)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestUnknownUseIsAnError checks that Used returns no use, which a resize would accept, if a page cannot
// be read.
func TestUnknownUseIsAnError(t *testing.T) {
	for name, missing := range map[string]string{"all files": "", "limits": limits.LimitsFile, "usage": limits.UsageFile, "nothing": "none"} {
		store, a := newStore(t), known()
		if missing != "" {
			if err := store.Save(a, nil, nil); err != nil {
				t.Fatal(err)
			}
			dir, err := store.Dir(a.PodUID, a.Container)
			if err != nil {
				t.Fatal(err)
			}
			_ = os.Remove(filepath.Join(dir, missing))
		}
		used, err := store.Used(a.PodUID, a.Container)
		if complete := name == "nothing"; (err == nil) != complete || complete && len(used) != len(a.Devices) {
			t.Errorf("without %s: %v, %v", name, used, err)
		}
	}
	if used, err := newStore(t).Used("..", "main"); err == nil {
		t.Errorf("a pod of another directory uses %v", used)
	}
}

// TestPodsWithUsagePagesElsewhere checks that Pods returns a pod of which only a usage page
// remains, and that Remove removes all files of a pod.
func TestPodsWithUsagePagesElsewhere(t *testing.T) {
	store := newStore(t)
	dir := filepath.Join(t.TempDir(), "usage")
	store.MountUsage(dir)
	for _, left := range []string{filepath.Join(dir, "a", "main"), filepath.Join(dir, "b", "main"), filepath.Join(store.dir, "b")} {
		if err := os.MkdirAll(left, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if uids, err := store.Pods(); err != nil || !slices.Equal(uids, []string{"a", "b"}) || !store.HasFiles("a") {
		t.Errorf("Pods() = %v, %v", uids, err)
	}
	if err := store.Remove("b"); err != nil || store.HasFiles("b") || !store.HasFiles("a") {
		t.Errorf("pod b and no other was to be removed: %v", err)
	}
}

func TestUsagePagesThatCannotBeMountedOrUnmounted(t *testing.T) {
	store := newStore(t)
	file := filepath.Join(t.TempDir(), "file")
	block(t, file, true)
	store.MountUsage(file)
	for name, err := range map[string]error{
		"Save": store.Save(known(), nil, nil), "SaveWhole": store.SaveWhole(known()), "Remove": store.Remove("u"),
	} {
		if !errors.Is(err, syscall.ENOTDIR) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestUsagePagesOnSeparateFileSystems checks that a container has one file system for its usage page,
// with the latest page. A Save that fails leaves no other file system.
func TestUsagePagesOnSeparateFileSystems(t *testing.T) {
	if !ownmounts.Run(t) {
		return
	}
	store, a := newStore(t), known()
	store.MountUsage(filepath.Join(ownmounts.Small(t), "usage"))
	dir, err := store.Dir(a.PodUID, a.Container)
	if err != nil {
		t.Fatal(err)
	}
	page := filepath.Join(dir, limits.UsageFile)
	systems := func(want int) (path string) {
		t.Helper()
		entries, err := os.ReadDir(filepath.Join(store.Usage.Dir, a.PodUID, a.Container))
		if err != nil || len(entries) != want {
			t.Errorf("%d file systems, want %d: %v", len(entries), want, err)
		}
		path, err = filepath.EvalSymlinks(page)
		if err != nil {
			t.Error(err)
		}
		return path
	}
	save := func() error { return store.Save(a, nil, nil) }
	if err := save(); err != nil {
		t.Fatal(err)
	}
	first := systems(1)
	if err := save(); err != nil {
		t.Fatal(err)
	}
	second := systems(1)
	if used, err := store.Used(a.PodUID, a.Container); first == second || err != nil || len(used) != 1 {
		t.Errorf("the page of a new instance is %s after %s, and its use is %v: %v", second, first, used, err)
	}
	if err := os.Remove(page); err != nil {
		t.Fatal(err)
	}
	block(t, page, false)
	if err := save(); err == nil {
		t.Error("a page that cannot be linked is saved")
	}
	systems(1)
}

// TestAnUnchangedListOfLibrariesStays checks that a restarted container has the same ld.so.preload, unless
// its libraries have changed. A tenant can keep each file open that its container had.
func TestAnUnchangedListOfLibrariesStays(t *testing.T) {
	store, a := newStore(t), known()
	file := func(libraries ...string) os.FileInfo {
		t.Helper()
		if err := store.Save(a, nil, libraries); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(store.dir, a.PodUID, a.Container, paths.Preload)
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if content, err := os.ReadFile(path); err != nil || string(content) != string(paths.PreloadContent(libraries...)) {
			t.Errorf("it is %q, %v", content, err)
		}
		return info
	}
	first, again, other, last := file(), file(), file("/a.so"), file()
	if !os.SameFile(first, again) || os.SameFile(again, other) || os.SameFile(other, last) {
		t.Error("an unchanged file was replaced, or a changed file was not")
	}
}
