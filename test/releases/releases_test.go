package releases

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// source is the repository's root.
const source = "../.."

// TestCommitThatTheCloneLacks: a shallow clone does not contain the previous release,
// and the error says how to get it.
func TestCommitThatTheCloneLacks(t *testing.T) {
	clone := t.TempDir()
	if out, err := exec.Command("git", "init", "-q", clone).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	_, err := Builder{Source: clone, Cache: t.TempDir()}.Previous(t.Context())
	if err == nil || !strings.Contains(err.Error(), "git fetch --unshallow") {
		t.Errorf("the error is %v", err)
	}
}

// TestPreviousIsInThisClone: what CI checks out has the recorded commit.
func TestPreviousIsInThisClone(t *testing.T) {
	commit := strings.Fields(recorded)[len(strings.Fields(recorded))-1]
	if _, err := (Builder{Source: source}).git(t.Context(), "cat-file", "-e", commit+"^{commit}"); err != nil {
		t.Errorf("the previous release %s is missing: run git fetch --unshallow: %v", commit, err)
	}
}

// TestEditsApply: the next release can be made of this tree.
func TestEditsApply(t *testing.T) {
	dir := t.TempDir()
	copied := map[string]bool{}
	for _, e := range edits {
		if copied[e.file] {
			continue
		}
		copied[e.file] = true
		if err := copyFile(filepath.Join(source, e.file), filepath.Join(dir, e.file)); err != nil {
			t.Fatal(err)
		}
	}
	if err := apply(dir, edits); err != nil {
		t.Fatal(err)
	}
	layout, err := os.ReadFile(filepath.Join(dir, edits[0].file))
	if err != nil || !strings.Contains(string(layout), "Version = 2") {
		t.Errorf("the pages' version is not another: %v", err)
	}
	if err := apply(dir, edits[:1]); err == nil {
		t.Error("an edit that finds nothing is no error")
	}
}
