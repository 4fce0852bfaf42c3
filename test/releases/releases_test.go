// SPDX-License-Identifier: Apache-2.0

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

// TestCommitThatTheCloneLacks checks that in a shallow clone, which lacks the previous release, the
// error states how to fetch the release.
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

// TestPreviousIsInThisClone checks that the checkout of CI contains the recorded commit.
func TestPreviousIsInThisClone(t *testing.T) {
	commit := strings.Fields(recorded)[len(strings.Fields(recorded))-1]
	if _, err := (Builder{Source: source}).git(t.Context(), "cat-file", "-e", commit+"^{commit}"); err != nil {
		t.Errorf("the previous release %s is missing: run git fetch --unshallow: %v", commit, err)
	}
}

// TestEditsApply checks that the edits apply to this tree.
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

// TestPagesOfOneVersionAgree checks that while the version of the pages stays the same, the fields
// of the previous release keep their places. Reserved words may become fields.
func TestPagesOfOneVersionAgree(t *testing.T) {
	commit := strings.Fields(recorded)[len(strings.Fields(recorded))-1]
	b := Builder{Source: source}
	before, err := b.git(t.Context(), "show", commit+":"+headerAt(t, b, commit))
	if err != nil {
		t.Fatalf("run git fetch --unshallow: %v", err)
	}
	now, err := os.ReadFile(filepath.Join(source, pagesHeader))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lost(string(before), string(now)) {
		t.Errorf("%s no longer has %q, and the pages' version is the same: "+
			"change Version in pkg/limits/internal/layout (docs/decisions/0037)", pagesHeader, line)
	}
}

// headerAt returns the path of the pages' header in a commit.
func headerAt(t *testing.T, b Builder, commit string) string {
	t.Helper()
	listed, err := b.git(t.Context(), "ls-tree", "-r", "--name-only", commit, "interposer/src")
	if err != nil {
		t.Fatalf("run git fetch --unshallow: %v", err)
	}
	for path := range strings.Lines(string(listed)) {
		if path = strings.TrimSpace(path); filepath.Base(path) == filepath.Base(pagesHeader) {
			return path
		}
	}
	t.Fatalf("%s has no %s", commit, filepath.Base(pagesHeader))
	return ""
}

const pagesHeader = "interposer/src/pages/pages_gen.h"

// lost returns the constants, sizes and offsets of a header that a later header of the same version
// lacks.
func lost(before, now string) []string {
	const version = "#define VG_VERSION "
	var all []string
	for line := range strings.Lines(before) {
		line = strings.TrimSpace(line)
		fixed := strings.HasPrefix(line, "#define VG_") || strings.HasPrefix(line, "_Static_assert(")
		spare := strings.Contains(line, ", reserved") || strings.Contains(line, ", tail")
		if !fixed || spare || strings.Contains("\n"+now, "\n"+line+"\n") {
			continue
		}
		if strings.HasPrefix(line, version) {
			return nil
		}
		all = append(all, line)
	}
	return all
}

func TestLost(t *testing.T) {
	header := func(lines ...string) string { return strings.Join(lines, "\n") + "\n" }
	const version, most, offset = "#define VG_VERSION 1u", "#define VG_MAX_SLOTS 1024u", `_Static_assert(offsetof(struct vg_slot, pid) == 0, "offset of vg_slot.pid");`
	const spare = `_Static_assert(offsetof(struct vg_slot, reserved) == 8, "offset of vg_slot.reserved");`
	before := header(version, most, offset, spare)
	for _, c := range []struct {
		name, now string
		want      int
	}{
		{"the same", before, 0},
		{"a reserved word became a field", header(version, most, offset, strings.ReplaceAll(spare, "reserved", "next")), 0},
		{"a field moved", header(version, most, strings.Replace(offset, "== 0", "== 4", 1), spare), 1},
		{"a constant changed", header(version, "#define VG_MAX_SLOTS 512u", offset, spare), 1},
		{"so did the version", header("#define VG_VERSION 2u", "#define VG_MAX_SLOTS 512u", spare), 0},
	} {
		if got := lost(before, c.now); len(got) != c.want {
			t.Errorf("%s: %q, want %d", c.name, got, c.want)
		}
	}
}
