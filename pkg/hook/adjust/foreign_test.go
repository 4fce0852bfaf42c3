// SPDX-License-Identifier: Apache-2.0

package adjust

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// TestYield checks containers of another device plugin. The node offers GPU-a (index 0, device node
// 4) and a MIG device of GPU-c, and leaves GPU-b (index 1, device node 7) to the plugin.
func TestYield(t *testing.T) {
	offered := []gpu.GPU{
		{UUID: "GPU-a1", Index: 0, Minor: 4},
		{UUID: "MIG-c1", Index: 2, Minor: 9, MIG: gpu.MIG{Parent: "GPU-c1"}},
	}
	rules := Rules{Injection: config.Default().Injection}
	env := func(env ...string) Container { return Container{Name: "c", Env: env} }
	hidden := Adjustment{Env: []Variable{{VisibleDevices, "void"}}}
	tests := []struct {
		name string
		c    Container
		want Adjustment
		err  Reason
	}{
		{"no sign of a GPU", env(), Adjustment{}, ""},
		{"its GPU by UUID", env("NVIDIA_VISIBLE_DEVICES=GPU-b1"), Adjustment{}, ""},
		{"its GPU by UUID over the image's all", env("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=GPU-b1"), Adjustment{}, ""},
		{"its GPU by index", env("NVIDIA_VISIBLE_DEVICES=1"), Adjustment{}, ""},
		{"its MIG device", env("NVIDIA_VISIBLE_DEVICES=MIG-1"), Adjustment{}, ""},
		{"its MIG device by index", env("NVIDIA_VISIBLE_DEVICES=1:0"), Adjustment{}, ""},
		{"hidden", env("NVIDIA_VISIBLE_DEVICES=void"), Adjustment{}, ""},
		{"all over its own", env("NVIDIA_VISIBLE_DEVICES=GPU-b1", "NVIDIA_VISIBLE_DEVICES=all"), Adjustment{}, ReasonBypass},
		{"ours by UUID", env("NVIDIA_VISIBLE_DEVICES=GPU-a1"), Adjustment{}, ReasonBypass},
		{"ours by a part of its UUID", env("NVIDIA_VISIBLE_DEVICES=GPU-a"), Adjustment{}, ReasonBypass},
		{"ours beside its own", env("NVIDIA_VISIBLE_DEVICES=GPU-b1, 0"), Adjustment{}, ReasonBypass},
		{"a part of ours by index", env("NVIDIA_VISIBLE_DEVICES=0:1"), Adjustment{}, ReasonBypass},
		{"our MIG device", env("NVIDIA_VISIBLE_DEVICES=MIG-c1"), Adjustment{}, ReasonBypass},
		{"the GPU of our MIG device", env("NVIDIA_VISIBLE_DEVICES=GPU-c1"), Adjustment{}, ReasonBypass},
		{"our MIG device by index", env("NVIDIA_VISIBLE_DEVICES=2:0"), Adjustment{}, ReasonBypass},
		{"a name that is not known", env("NVIDIA_VISIBLE_DEVICES=first"), Adjustment{}, ReasonBypass},
		{"an early CUDA image", env("CUDA_VERSION=8.0"), Adjustment{}, ReasonBypass},
		{"its GPU by a volume", Container{
			Env: []string{"NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices"}, Mounts: []Mount{{Destination: "/var/run/nvidia-container-devices/GPU-b1"}},
		}, Adjustment{}, ""},
		{"ours by a volume", Container{Mounts: []Mount{{Destination: "/var/run/nvidia-container-devices/0/"}}}, Adjustment{}, ReasonBypass},
		{"its GPU by CDI, and the image's all", Container{
			Env: []string{"NVIDIA_VISIBLE_DEVICES=all"}, CDIDevices: []string{"k8s.device-plugin.nvidia.com/gpu=GPU-b1"},
		}, hidden, ""},
		{"ours by CDI", Container{CDIDevices: []string{"nvidia.com/gpu=0"}}, Adjustment{}, ReasonBypass},
		{"all by CDI", Container{CDIDevices: []string{"nvidia.com/gpu=all"}}, Adjustment{}, ReasonBypass},
		{"another device by CDI", Container{CDIDevices: []string{"example.com/nic=0"}}, Adjustment{}, ""},
		{"its GPU by annotation", Container{Annotations: map[string]string{"cdi.k8s.io/nvidia-device-plugin_x": "nvidia.com/gpu=GPU-b1"}}, Adjustment{}, ""},
		{"ours by annotation", Container{PodAnnotations: map[string]string{"cdi.k8s.io/x": "nvidia.com/gpu=1,nvidia.com/gpu=GPU-a1"}}, Adjustment{}, ReasonBypass},
		{"its device node", Container{
			Env: []string{"NVIDIA_VISIBLE_DEVICES=all"}, Devices: []string{"/dev/nvidiactl", "/dev/nvidia7", "/dev/nvidia-uvm", "/dev/nvidia-caps/nvidia-cap1"},
		}, hidden, ""},
		{"our device node", Container{Devices: []string{"/dev/nvidia4"}}, Adjustment{}, ReasonBypass},
		{"the node of all GPUs", Container{Devices: []string{"/dev/dxg"}}, Adjustment{}, ReasonBypass},
		{"a privileged container", Container{Devices: []string{"/dev/kmsg", "/dev/nvidia4"}}, Adjustment{}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := rules.Yield(tt.c, withCDI, "nvidia.com/gpu", offered)
			checkRefusal(t, err, tt.err)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			for _, v := range got.Env {
				tt.c.Env = []string{v.Name + "=" + v.Value}
			}
			checkRefusal(t, rules.CheckForeign(tt.c, "nvidia.com/gpu", offered), tt.err)
		})
	}
	all := env("NVIDIA_VISIBLE_DEVICES=all")
	if err := rules.CheckForeign(all, "nvidia.com/gpu", nil); err != nil {
		t.Errorf("on a node that offers no GPU: %v", err)
	}
	all.CDIDevices = []string{EnvDevice(NoDevices)}
	checkRefusal(t, rules.CheckForeign(all, "nvidia.com/gpu", offered), "")
}
