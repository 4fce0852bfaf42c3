// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"path"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
)

// TestWhoGetsTools checks that a container with limits or whole GPUs gets the tools and the agent's
// socket.
func TestWhoGetsTools(t *testing.T) {
	for name, shares := range map[string]string{"a part": "30", "a whole GPU": "100", "both": "150"} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			pod := n.pod("m", "main")
			n.api.change(func() {
				pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"cnvrg.io/metagpu": resource.MustParse(shares)}
			})
			spec := mustCreate(t, n, "m")
			wantTools(t, n, spec, paths.Vgpuctl, paths.Mgctl)
		})
	}
}

func wantTools(t *testing.T, n *node, spec *rspec.Spec, names ...string) {
	t.Helper()
	for _, name := range names {
		for _, dir := range []string{paths.ContainerHomeDir + "/bin", paths.ContainerPath} {
			if m, ok := mountAt(spec, path.Join(dir, name)); !ok || path.Base(m.Source) != paths.Vgpuctl {
				t.Errorf("in %s: %+v", dir, m)
			}
		}
	}
	if m, ok := mountAt(spec, paths.ContainerAgent); !ok || m.Source != paths.Agent(n.cfg.Paths.RunDir) {
		t.Errorf("the agent: %+v", m)
	}
}
