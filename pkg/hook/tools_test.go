package hook

import (
	"path"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/google/go-cmp/cmp"
	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

func TestTools(t *testing.T) {
	const own, mgctl = "/usr/local/nri-vgpu/bin/vgpuctl", "/usr/local/nri-vgpu/bin/mgctl"
	everywhere := []string{own, "/usr/bin/vgpuctl", mgctl, "/usr/bin/mgctl"}
	tests := []struct {
		name    string
		dialect string
		mounts  []string
		want    []string
	}{
		{"any dialect", request.DialectNative, nil, everywhere[:2]},
		{"MetaGPU's", request.DialectMetaGPU, nil, everywhere},
		{"volumes elsewhere", request.DialectMetaGPU, []string{"/usr/binary", "/usr/bin/other", "/data", "/"}, everywhere},
		{"a volume there", request.DialectMetaGPU, []string{"/usr/bin/"}, []string{own, mgctl}},
		{"a volume above", request.DialectMetaGPU, []string{"/usr"}, []string{own, mgctl}},
		{"a volume at the directory's other name", request.DialectMetaGPU, []string{"/bin"}, []string{own, mgctl}},
		{"a file of that name", request.DialectMetaGPU, []string{"/usr/./bin/mgctl"}, everywhere[:3]},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var c Container
			for _, m := range tt.mounts {
				c.Mounts = append(c.Mounts, Mount{Destination: m})
			}
			var a Adjustment
			a.mountTools(c, "/opt/1", tt.dialect)
			var got []string
			for _, m := range a.Mounts {
				got = append(got, m.Destination)
				if m.Source != "/opt/1/vgpuctl" || !slices.Contains(m.Options, "ro") {
					t.Errorf("got %+v", m)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A container has the tools, and the way to the agent, whether it has limits or
// whole GPUs.
func TestWhoGetsTools(t *testing.T) {
	for name, shares := range map[string]string{"a part": "30", "a whole GPU": "100", "both": "150"} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			pod := n.pod("m", "main")
			n.api.change(func() {
				pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"cnvrg.io/metagpu": resource.MustParse(shares)}
			})
			spec := mustCreate(t, n, "m")
			wantTools(t, n, spec, layout.Vgpuctl, layout.Mgctl)
		})
	}
}

func wantTools(t *testing.T, n *node, spec *rspec.Spec, names ...string) {
	t.Helper()
	for _, name := range names {
		for _, dir := range []string{layout.ContainerHomeDir + "/bin", layout.ContainerPath} {
			if m, ok := mountAt(spec, path.Join(dir, name)); !ok || path.Base(m.Source) != layout.Vgpuctl {
				t.Errorf("in %s: %+v", dir, m)
			}
		}
	}
	if m, ok := mountAt(spec, layout.ContainerAgent); !ok || m.Source != layout.Agent(n.cfg.Paths.RunDir) {
		t.Errorf("the agent: %+v", m)
	}
}
