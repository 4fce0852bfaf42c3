// SPDX-License-Identifier: Apache-2.0

// Package tools contains only tests, which run the scripts in the same directory.
package tools

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestCommitMessage(t *testing.T) {
	for name, tt := range map[string]struct {
		message string
		want    string // part of the output; empty if the message is valid
	}{
		"a subject":            {"hook: refuse long paths\n", ""},
		"with a body":          {"hook: refuse long paths\n\nA path of 1 MiB delayed the runtime.\n", ""},
		"a path for an area":   {"cmd/nri-vgpu: print the version", ""},
		"comments of git":      {"\n# Please enter the commit message\nhook: refuse long paths\n# On branch main\n", ""},
		"72 characters":        {"hook: " + strings.Repeat("ä", 66), ""},
		"73 characters":        {"hook: " + strings.Repeat("ä", 67), "72 characters at most; it has 73"},
		"a merge":              {"Merge branch 'main' into hook", ""},
		"a revert":             {`Revert "hook: refuse long paths"`, ""},
		"to be squashed":       {"fixup! hook: refuse long paths", ""},
		"no area":              {"Refuse long paths", "begin with one area"},
		"two areas":            {"hook, guard: refuse long paths", "begin with one area"},
		"a capital":            {"Hook: refuse long paths", "begin with one area"},
		"nothing after it":     {"hook: ", "begin with one area"},
		"nothing":              {"# Please enter the commit message\n", "begin with one area"},
		"a full stop":          {"hook: refuse long paths.", "full stop"},
		"a body too near":      {"hook: refuse long paths\nA path of 1 MiB delayed the runtime.\n", "an empty line"},
		"a subject of 2 lines": {"hook: refuse\nlong paths\n\nA path of 1 MiB delayed the runtime.\n", "an empty line"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "COMMIT_EDITMSG")
			if err := os.WriteFile(file, []byte(tt.message), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command("./commit-message.sh", file).CombinedOutput()
			if (err == nil) != (tt.want == "") || !strings.Contains(string(out), tt.want) {
				t.Errorf("got %q, %v, want %q", out, err, tt.want)
			}
		})
	}
}

// TestCommitMessagesOfARange checks that commit-message.sh checks each commit of a range, except
// merges.
func TestCommitMessagesOfARange(t *testing.T) {
	repository := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"}, args...)...)
		cmd.Dir = repository
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v\n%s", args, err, out)
		}
	}
	commit := func(message string) { git("commit", "--quiet", "--allow-empty", "-m", message) }
	git("init", "--quiet", "--initial-branch=main")
	commit("The first one is not in the range")
	commit("hook: refuse long paths")
	git("checkout", "--quiet", "-b", "other", "HEAD~1")
	commit("guard: read the list once")
	git("merge", "--quiet", "--no-ff", "-m", "Together, whatever they are", "main")

	script, err := filepath.Abs("commit-message.sh")
	if err != nil {
		t.Fatal(err)
	}
	check := func() (string, error) {
		cmd := exec.Command(script, "--range", ":/The first..HEAD")
		cmd.Dir = repository
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := check(); err != nil {
		t.Errorf("got %q, %v", out, err)
	}
	commit("Anything")
	commit("hook: refuse longer paths")
	if out, err := check(); err == nil || strings.Count(out, "\n") != 1 || !strings.Contains(out, "Anything") {
		t.Errorf("got %q, %v", out, err)
	}
}
