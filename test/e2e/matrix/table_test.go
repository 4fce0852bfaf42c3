// SPDX-License-Identifier: Apache-2.0

package matrix

import (
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/test/cluster"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
)

const (
	document   = "docs/reference/compatibility.md"
	tableBegin = "<!-- Written by `make e2e-matrix`. -->\n"
	tableEnd   = "<!-- end of the matrix -->\n"
)

// runtimeNames are the runtimes' names in the table, by their names on the Node.
var runtimeNames = map[string]string{"containerd": "containerd", "cri-o": "CRI-O"}

// row is one node of the table.
type row struct {
	node
	nri, runtimeVersion, kubeletVersion, method string
}

// versions reads the versions from the Node, and checks that they are the requested versions.
func (r *row) versions(s *suite) {
	n, err := s.bed.Node(s.Context())
	s.must(err)
	name, version, _ := strings.Cut(n.Status.NodeInfo.ContainerRuntimeVersion, "://")
	version, _, _ = strings.Cut(strings.TrimPrefix(version, "v"), "+")
	r.runtimeVersion = runtimeNames[name] + " " + version
	r.kubeletVersion = n.Status.NodeInfo.KubeletVersion
	if r.runtime != cluster.CRIO && "v"+version != components.ContainerdVersions[r.runtime] {
		s.Fatalf("the node runs containerd %s, want %s", version, components.ContainerdVersions[r.runtime])
	}
	if want := components.KubeletVersions[r.kubelet]; r.kubeletVersion != want {
		s.Fatalf("the node runs kubelet %s, want %s", r.kubeletVersion, want)
	}
	r.nri = nriVersion(s)
}

// nriVersion returns the version of NRI with which the node's runtime was built.
func nriVersion(s *suite) string {
	s.Helper()
	program := filepath.Join(s.bed.Cluster.Root(), "usr/local/bin", s.bed.Cluster.Runtime())
	info, err := buildinfo.ReadFile(program)
	s.must(err)
	for _, module := range info.Deps {
		if module.Path == "github.com/containerd/nri" {
			return strings.TrimPrefix(module.Version, "v")
		}
	}
	s.Fatalf("%s was built without NRI", program)
	return ""
}

// line returns the row in the form of the table.
func (r row) line(commit string) string {
	return fmt.Sprintf("| %s | %s | %s | `%s` | %s, %s |\n", r.runtimeVersion, r.nri,
		strings.TrimPrefix(r.kubeletVersion, "v"), r.method, time.Now().UTC().Format(time.DateOnly), commit)
}

// is reports whether a line of the table describes this node.
func (n node) is(line string) bool {
	runtime := "containerd " + n.runtime + "."
	if n.runtime == cluster.CRIO {
		runtime = "CRI-O "
	}
	cells := strings.Split(line, "|")
	return len(cells) > 4 && strings.HasPrefix(strings.TrimSpace(cells[1]), runtime) &&
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
	table := "| runtime | NRI | kubelet | injection | passed: date, commit |\n|---|---|---|---|---|\n"
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
