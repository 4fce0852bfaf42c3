// SPDX-License-Identifier: Apache-2.0

package gpuaccess

import "testing"

func TestIsGPU(t *testing.T) {
	for device, want := range map[string]bool{
		"nvidia.com/gpu=0":            true,
		"nvidia.com/mig=1":            true,
		"runtime.nvidia.com/gpu=all":  true,
		"k8s.device.nvidia.com/gpu=x": true,
		"acme.org/gpu=1":              true,
		"nri-vgpu.io/env=GPU-x":       true,
		"nri-vgpu.io/env=preload":     true,
		"nri-vgpu.io/env=void":        false,
		"acme.org/nic=1":              false,
		"notnvidia.com/gpu=0":         false,
		"nonsense":                    false,
		"":                            false,
	} {
		if got := IsGPU(device, "acme.org/gpu"); got != want {
			t.Errorf("%q: got %v", device, got)
		}
	}
}

func TestWish(t *testing.T) {
	annotated := func(key, value string) Container { return Container{Annotations: map[string]string{key: value}} }
	env := func(env ...string) Container { return Container{Env: env} }
	tests := []struct {
		name string
		c    Container
		wish bool
	}{
		{"nothing", Container{}, false},
		{"variable", env("A=b", "NVIDIA_VISIBLE_DEVICES=all"), true},
		{"a GPU by its number", env("NVIDIA_VISIBLE_DEVICES=0"), true},
		{"void", env("NVIDIA_VISIBLE_DEVICES=void"), false},
		{"none", env("NVIDIA_VISIBLE_DEVICES=none"), false},
		{"empty", env("NVIDIA_VISIBLE_DEVICES="), false},
		{"image all, pod void", env("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void"), false},
		{"image void, pod all", env("NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=all"), true},
		{"old CUDA image", env("CUDA_VERSION=8.0"), true},
		{"old CUDA image, void", env("CUDA_VERSION=8.0", "NVIDIA_VISIBLE_DEVICES=void"), false},
		{"CUDA image without the variable", env("CUDA_VERSION=12.4", "NVIDIA_REQUIRE_CUDA=cuda>=12.4"), false},
		{"volume", Container{Mounts: []string{"/x", "/var/run/nvidia-container-devices/all"}}, true},
		{"volume, by a detour", Container{Mounts: []string{"/run/./nvidia-container-devices/0/"}}, true},
		{"annotation", annotated("cdi.k8s.io/x", "a.b/c=d, nvidia.com/gpu=all"), true},
		{"operator's annotation", annotated("nvidia.cdi.k8s.io/x", "runtime.nvidia.com/gpu=0"), true},
		{"another's annotation", annotated("cdi.k8s.io/net", "example.com/nic=1"), false},
		{"CDI device", Container{CDIDevices: []string{"nvidia.com/gpu=0"}}, true},
		{"CDI device of another", Container{CDIDevices: []string{"nri-vgpu.io/env=void"}}, false},
		{"our device of a GPU", Container{CDIDevices: []string{"nri-vgpu.io/env=GPU-x"}}, true},
		{"our device of a GPU, by annotation", annotated("cdi.k8s.io/x", "nri-vgpu.io/env=GPU-x"), true},
		{"device node", Container{Devices: []string{"/dev/fuse", "/dev/nvidia0"}}, true},
		{"all device nodes", Container{Devices: []string{"/dev/kmsg", "/dev/nvidia0"}}, false},
		{"another device node", Container{Devices: []string{"/dev/fuse"}}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.c.Wish("nvidia.com/gpu"); (got != "") != tt.wish {
				t.Errorf("wish is %q", got)
			}
		})
	}
}

func TestCommands(t *testing.T) {
	const socket = "/var/run/nri/nri.sock"
	privileged := []string{"/dev/null", "/dev/kmsg", "/dev/nvidia0"}
	for _, tt := range []struct {
		name              string
		devices, writable []string
		want              bool
	}{
		{"an agent", privileged, []string{"/etc/x", "/run/nri"}, true},
		{"an agent, without links", privileged, []string{"/var/run/nri"}, true},
		{"an agent, with a slash", privileged, []string{"/run/nri/"}, true},
		{"no device nodes", nil, []string{"/run/nri"}, false},
		{"a GPU's device node", []string{"/dev/nvidia0"}, []string{"/run/nri"}, false},
		{"another directory", privileged, []string{"/run/nri2", "/run", "/"}, false},
		{"nothing to write to", privileged, nil, false},
		{"a volume", privileged, []string{"/var/lib/kubelet/pods/u/volumes/run/nri"}, false},
	} {
		if got := Commands(tt.devices, tt.writable, socket); got != tt.want {
			t.Errorf("%s: got %v", tt.name, got)
		}
	}
}
