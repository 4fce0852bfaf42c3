// SPDX-License-Identifier: Apache-2.0

package guardfile

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
)

// previousAsking is the list in the form in which the previous release writes it.
type previousAsking struct {
	Version int      `json:"version"`
	SHA256  string   `json:"sha256"`
	Pods    []string `json:"pods"`
}

func sumOf(lines ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n") + "\n"))
	return hex.EncodeToString(sum[:])
}

func TestListsOfTheOtherRelease(t *testing.T) {
	dir := t.TempDir()
	pods := []Pod{{"b", "ns", "two"}, {"a", "ns", "one"}, {UID: "c"}}
	if err := WriteAsking(dir, pods); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(paths.AskingPods(dir))
	if err != nil {
		t.Fatal(err)
	}
	var previous previousAsking
	if err := json.Unmarshal(content, &previous); err != nil {
		t.Fatal(err)
	}
	if want := (previousAsking{1, sumOf("a", "b", "c"), []string{"a", "b", "c"}}); cmp.Diff(want, previous) != "" {
		t.Errorf("the previous release's guard reads %+v", previous)
	}
	slices.SortFunc(pods, Pod.Compare)
	if got, err := ReadAsking(dir); err != nil || !slices.Equal(got, pods) {
		t.Errorf("read back: %v, %v", got, err)
	}

	content, err = json.Marshal(previousAsking{1, sumOf("a", "b"), []string{"a", "b"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(paths.AskingPods(dir), content, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := ReadAsking(dir)
	if err != nil || !slices.Equal(got, []Pod{{UID: "a"}, {UID: "b"}}) {
		t.Errorf("the previous release's list: %v, %v", got, err)
	}
	if !got[0].Is(Pod{"a", "ns", "any"}) || got[0].Is(Pod{"b", "ns", "any"}) {
		t.Error("a pod without a name is not any of its UID")
	}
}

// TestAListThatCannotBeReadIsAnError checks that a list that cannot be read is no empty list, by which no
// pod would request GPUs.
func TestAListThatCannotBeReadIsAnError(t *testing.T) {
	if got, err := ReadAsking(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing list: %v, %v", got, err)
	}
	if got, err := ReadAskingFile(t.TempDir()); !errors.Is(err, unix.EISDIR) {
		t.Errorf("a directory: %v, %v", got, err)
	}
}

func TestADamagedListIsNotTrusted(t *testing.T) {
	good := newAsking([]Pod{{"a", "ns", "one"}, {"b", "ns", "two"}})
	for name, damage := range map[string]func(*asking){
		"another name": func(a *asking) { a.Names[0] = "ns/three" },
		"a name less":  func(a *asking) { a.Names = a.Names[:1]; a.NamesSHA256 = checksum(a.Names) },
		"no names":     func(a *asking) { a.Names = nil },
		"no checksum":  func(a *asking) { a.NamesSHA256 = "" },
		"another UID":  func(a *asking) { a.Pods[0] = "c" },
		"no version":   func(a *asking) { a.Version = 0 },
	} {
		dir, bad := t.TempDir(), good
		bad.Names, bad.Pods = slices.Clone(good.Names), slices.Clone(good.Pods)
		damage(&bad)
		content, err := json.Marshal(bad)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(paths.AskingPods(dir), content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadAsking(dir); !errors.Is(err, ErrAsking) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestAListOfANewerAgent checks that a guard uses the fields of a newer agent's list that the guard
// knows. If the guard wrongly treats a pod as an asking pod, the guard refuses the pod, which is
// safe.
func TestAListOfANewerAgent(t *testing.T) {
	sum := sha256.Sum256([]byte("a\nb\n"))
	good := hex.EncodeToString(sum[:])
	for _, c := range []struct {
		name, content string
		want          []Pod
	}{
		{"a new field", fmt.Sprintf(`{"version":1,"cats":3,"sha256":%q,"pods":["a","b"]}`, good), []Pod{{UID: "a"}, {UID: "b"}}},
		{"a new version", fmt.Sprintf(`{"version":2,"sha256":%q,"pods":["a","b"],"cats":["x"]}`, good), []Pod{{UID: "a"}, {UID: "b"}}},
		{"no version", fmt.Sprintf(`{"sha256":%q,"pods":["a","b"]}`, good), nil},
		{"another checksum", `{"version":2,"sha256":"00","pods":["a","b"]}`, nil},
		{"another meaning", fmt.Sprintf(`{"version":2,"sha256":%q,"pods":[{"uid":"a"}]}`, good), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(paths.AskingPods(dir), []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := ReadAsking(dir)
			if !slices.Equal(got, c.want) || errors.Is(err, ErrAsking) != (c.want == nil) {
				t.Errorf("got %v, %v, want %v", got, err, c.want)
			}
		})
	}
}

func TestTheListHasItsRights(t *testing.T) {
	umask := unix.Umask(0)
	defer unix.Umask(umask)
	dir := filepath.Join(t.TempDir(), "state")
	if err := WriteAsking(dir, nil); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{dir: 0o755, paths.AskingPods(dir): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("the rights of %s are %v, %v, want %v", path, info.Mode(), err, want)
		}
	}
}

func TestAListThatCannotBeWrittenIsAnError(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := WriteAsking(filepath.Join(file, "state"), nil); err == nil {
		t.Error("a state directory that cannot be made is no error")
	}
	if err := os.MkdirAll(filepath.Join(paths.AskingPods(dir), "inside"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := WriteAsking(dir, nil); err == nil {
		t.Error("a directory in place of the list is no error")
	}
}
