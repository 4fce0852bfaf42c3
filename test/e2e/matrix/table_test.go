// SPDX-License-Identifier: Apache-2.0

package matrix

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
)

const (
	document   = "docs/reference/compatibility.md"
	tableBegin = "<!-- Written by `make e2e-matrix`. -->\n"
	tableEnd   = "<!-- end of the matrix -->\n"
)

// row is one node of the table.
type row struct {
	node
	nri, runtime, kubeletVersion, method string
}

// versions reads the versions from the Node, and checks that they are the requested versions.
func (r *row) versions(s *suite) {
	n, err := s.bed.Node(s.Context())
	s.must(err)
	r.runtime = strings.TrimSuffix(strings.TrimPrefix(n.Status.NodeInfo.ContainerRuntimeVersion, "containerd://"), "+unknown")
	r.kubeletVersion = n.Status.NodeInfo.KubeletVersion
	if want := strings.TrimPrefix(components.ContainerdVersions[r.containerd], "v"); strings.TrimPrefix(r.runtime, "v") != want {
		s.Fatalf("the node runs containerd %s, want %s", r.runtime, want)
	}
	if want := components.KubeletVersions[r.kubelet]; r.kubeletVersion != want {
		s.Fatalf("the node runs kubelet %s, want %s", r.kubeletVersion, want)
	}
}

var nriModule = regexp.MustCompile(`github.com/containerd/nri v(\S+)`)

// nriVersion returns the version of NRI with which containerd was built.
func nriVersion(t *testing.T, source, line string) string {
	t.Helper()
	directory := "containerd-" + line
	if line == components.DefaultContainerd {
		directory = "containerd"
	}
	content, err := os.ReadFile(filepath.Join(source, "tools", directory, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	match := nriModule.FindSubmatch(content)
	if match == nil {
		t.Fatalf("tools/%s/go.mod does not name NRI", directory)
	}
	return string(match[1])
}

// line returns the row in the form of the table.
func (r row) line(commit string) string {
	return fmt.Sprintf("| %s | %s | %s | `%s` | %s, %s |\n", strings.TrimPrefix(r.runtime, "v"), r.nri,
		strings.TrimPrefix(r.kubeletVersion, "v"), r.method, time.Now().UTC().Format(time.DateOnly), commit)
}

// is reports whether a line of the table describes this node.
func (n node) is(line string) bool {
	cells := strings.Split(line, "|")
	return len(cells) > 4 && strings.HasPrefix(strings.TrimSpace(cells[1]), n.containerd+".") &&
		strings.HasPrefix(strings.TrimSpace(cells[3]), n.kubelet+".")
}

// commitOf returns the tested commit. The table that this test writes does not count as a change of
// the commit.
func commitOf(t *testing.T, source string) string {
	t.Helper()
	git := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", source}, args...)...).Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	commit := git("rev-parse", "--short", "HEAD")
	if git("status", "--porcelain", "--", ".", ":!"+document) != "" {
		commit += "-dirty"
	}
	return commit
}

// writeTable writes the rows into the table of the document, and keeps the rows of nodes that the
// test did not run.
func writeTable(t *testing.T, source string, rows []row) {
	t.Helper()
	commit := commitOf(t, source)
	path := filepath.Join(source, document)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(text), tableBegin)
	old, after, ends := strings.Cut(rest, tableEnd)
	if !begins || !ends {
		t.Fatalf("%s has no place for the table", document)
	}
	table := "| containerd | NRI | kubelet | injection | passed: date, commit |\n|---|---|---|---|---|\n"
	for _, n := range nodes {
		line := ""
		for have := range strings.Lines(old) {
			if n.is(have) {
				line = have
			}
		}
		for _, r := range rows {
			if r.node == n {
				line = r.line(commit)
			}
		}
		table += line
	}
	if err := os.WriteFile(path, []byte(before+tableBegin+table+tableEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
