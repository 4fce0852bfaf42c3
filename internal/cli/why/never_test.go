// SPDX-License-Identifier: Apache-2.0

package why

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

func TestNever(t *testing.T) {
	full := placement.Room{UUID: "GPU-0", MemoryBytes: 16 * gib, Exclusive: true, Holders: 1, MPS: true}
	small := placement.Room{UUID: "GPU-1", MemoryBytes: 8 * gib, FreeMemoryBytes: 8 * gib, Healthy: true}
	for _, tt := range []struct {
		name  string
		pod   map[corev1.ResourceName]int64
		nodes [][]placement.Room
		want  string // "" if a node can start the pod
	}{
		{"a full GPU may become free", map[corev1.ResourceName]int64{memory: 16 << 10, cores: 100}, [][]placement.Room{{small}, {full}}, ""},
		{"no GPU is that large", map[corev1.ResourceName]int64{memory: 20000}, [][]placement.Room{{small}, {full, small}}, "no GPU is that large: the largest has 16384 MiB to allocate"},
		{"too few GPUs of that size", map[corev1.ResourceName]int64{memory: 12 << 10, number: 2}, [][]placement.Room{{full, small}, {full}}, "on 2 GPUs at once, and the largest number of such GPUs on a node is 1"},
		{"enough GPUs on different nodes", map[corev1.ResourceName]int64{memory: 8 << 10, number: 2}, [][]placement.Room{{full}, {full, small}}, ""},
		{"shares that may be spread", map[corev1.ResourceName]int64{"cnvrg.io/metagpu": 90}, [][]placement.Room{{small}}, ""},
		{"no request", nil, [][]placement.Room{{small}}, ""},
		{"nothing is known", map[corev1.ResourceName]int64{memory: 20000}, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			asked, err := request.Read(pod("p", tt.pod), config.Default())
			if err != nil {
				t.Fatal(err)
			}
			got := Never(asked, tt.nodes)
			if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestNeverByWishes checks that no node can ever start a pod that names only GPUs of no node.
func TestNeverByWishes(t *testing.T) {
	asked := request.Pod{Containers: []request.Container{{Name: "a", Kind: request.App, Shares: []request.Share{{Memory: request.Memory{PPM: 1}, GPUs: []string{"GPU-9"}}}}}}
	if got := Never(asked, [][]placement.Room{{{UUID: "GPU-0", MemoryBytes: gib}}}); !strings.Contains(got, "no GPU is suitable") {
		t.Errorf("got %q", got)
	}
}

// TestNeverConcludes checks that the conclusion claims that no node can ever start a pod only if
// the GPUs of all nodes are known.
func TestNeverConcludes(t *testing.T) {
	large := pod("large", map[corev1.ResourceName]int64{memory: 20000})
	a := answer(t, large)
	if got := a.conclusion(); strings.Contains(got, "ever") {
		t.Errorf("with a node whose GPUs are not known: %q", got)
	}
	a.Nodes = slices.DeleteFunc(a.Nodes, func(n Node) bool { return n.Name == "unknown" })
	if got := a.conclusion(); !strings.HasPrefix(got, "No node can ever start the pod: container a requests 20000 MiB of one GPU, and no GPU is that large: the largest has 16384 MiB") {
		t.Errorf("got %q", got)
	}
}
