// SPDX-License-Identifier: Apache-2.0

// Package matrix runs a smoke test of nri-vgpu on nodes with other runtimes and kubelets than the
// end-to-end tests use. The package takes some minutes. "make e2e-matrix" runs the package, and
// "make test" does not.
package matrix

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/test/cluster"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

var (
	write = flag.Bool("matrix.write", false, "write the table in docs/reference/compatibility.md")
	only  = flag.String("matrix.only", "", "one node of the matrix, such as 1.7/1.34")
	crio  = flag.String("matrix.crio", "", "a directory with CRI-O's programs crio and pinns, for the nodes with CRI-O")
)

// nodes are the combinations of versions. Each version of containerd or kubelet is combined with
// the newest version of the other program. The oldest versions are also combined with each other.
// CRI-O has the version of the programs in the directory that matrix.crio names.
var nodes = []node{
	{"2.4", "1.37"}, {"2.2", "1.37"}, {"2.0", "1.37"}, {"1.7", "1.37"}, {"2.4", "1.34"}, {"1.7", "1.34"}, {cluster.CRIO, "1.37"},
}

// node is a line of containerd, or CRI-O, with a line of kubelet.
type node struct{ runtime, kubelet string }

func (n node) String() string { return n.runtime + "/" + n.kubelet }

// options returns the bed's options for this node.
func (n node) options(source string) testbed.Options {
	o := testbed.Options{
		Name: "matrix", Source: source, GPUs: gpus, GPUMemory: gpuMemory, KubeletLine: n.kubelet,
		Log: func(format string, args ...any) { fmt.Printf("matrix: "+n.String()+": "+format+"\n", args...) },
	}
	if n.runtime == cluster.CRIO {
		o.CRIO = *crio
	} else {
		o.ContainerdLine = n.runtime
	}
	return o
}

func TestMain(m *testing.M) {
	cluster.Supervise()
	os.Exit(m.Run())
}

func TestMatrix(t *testing.T) {
	source, err := testbed.SourceRoot()
	if err != nil {
		t.Fatal(err)
	}
	var rows []row
	found := false
	for _, n := range nodes {
		if *only != "" && *only != n.String() {
			continue
		}
		found = true
		if n.runtime == cluster.CRIO && *crio == "" {
			if *only != "" {
				t.Fatalf("%s needs -matrix.crio, a directory with CRI-O's programs crio and pinns", n)
			}
			t.Logf("%s is left out, because -matrix.crio names no programs", n)
			continue
		}
		t.Run(n.String(), func(t *testing.T) { rows = append(rows, smoke(t, source, n)) })
	}
	if !found {
		t.Fatalf("-matrix.only=%s is no node of the matrix: %v", *only, nodes)
	}
	if *write && !t.Failed() {
		writeTable(t, source, rows)
	}
}

// smoke starts a node, checks the functions that a user meets first, and takes the node down.
func smoke(t *testing.T, source string, n node) row {
	t.Helper()
	options := n.options(source)
	bed, err := testbed.Up(t.Context(), options)
	if bed != nil {
		t.Cleanup(func() {
			if err := bed.Down(t.Failed()); err != nil {
				t.Errorf("take the cluster down: %v", err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	s := &suite{T: t, bed: bed}
	r := row{node: n}
	r.versions(s)
	for _, step := range []struct {
		name string
		run  func(*suite)
	}{
		{"a pod is held to its memory and time", (*suite).held},
		{"a container sees only its requested GPUs", (*suite).hidden},
		{"a request that fits no GPU is refused", (*suite).refused},
		{"processes of kubectl exec register and share the limit", (*suite).joined},
		{"a new agent restores the allocations", (*suite).restarted},
		{"the guard refuses while the agent is away", (*suite).guarded},
		{"a killed agent restores the allocations", (*suite).killed},
		{"the capacity of ended pods is free", (*suite).givenBack},
	} {
		options.Log("%s", step.name)
		step.run(s)
	}
	r.method = s.method
	return r
}
