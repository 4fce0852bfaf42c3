package hook

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

func newStore(t *testing.T) *Store {
	t.Helper()
	store, err := NewStore(filepath.Join(t.TempDir(), "containers"))
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// block puts a directory that is not empty where a file is to be written, or, with `file`, a
// file where a directory is.
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
		path  string // of what is in the way
		file  bool
	}{
		{"Save: the container's directory", save, "u/main", true},
		{"Save: the assignment", save, "u/main/" + assignmentFile, false},
		{"Save: the list of libraries", save, "u/main/" + layout.Preload, false},
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
	// A store that has gone has no pods; one that cannot be listed is an error.
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
	if _, err := NewStore(store.dir); err == nil {
		t.Error("NewStore() of a file is no error")
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
			t.Errorf("of %d bytes: %v, want %v", tt.size, err, tt.want)
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
