// SPDX-License-Identifier: Apache-2.0

package adjust

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

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
