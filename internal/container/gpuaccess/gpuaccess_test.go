// SPDX-License-Identifier: Apache-2.0

package gpuaccess

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

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
	annotated := func(key, value string) Container {
		c := Container{Annotations: map[string]string{key: value}}
		for i := range 20 { // the order of a map is random
			c.Annotations[fmt.Sprint("other", i)] = "nvidia.com/gpu=9"
		}
		return c
	}
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

func TestByEnvironment(t *testing.T) {
	for _, tt := range []struct {
		name string
		env  []string
		want []Reference
	}{
		{"nothing", nil, nil},
		{"all", []string{"NVIDIA_VISIBLE_DEVICES=all"}, []Reference{{By: "NVIDIA_VISIBLE_DEVICES=all", GPU: AllGPUs}}},
		{"a list", []string{"NVIDIA_VISIBLE_DEVICES=0, GPU-x,none,"}, []Reference{
			{By: "NVIDIA_VISIBLE_DEVICES=0, GPU-x,none,", GPU: "0"}, {By: "NVIDIA_VISIBLE_DEVICES=0, GPU-x,none,", GPU: "GPU-x"},
		}},
		{"void", []string{"NVIDIA_VISIBLE_DEVICES=void"}, nil},
		{"the mounts select", []string{"NVIDIA_VISIBLE_DEVICES=" + VolumeDevicesDir}, nil},
		{"old CUDA image", []string{"CUDA_VERSION=8.0"}, []Reference{{By: "CUDA_VERSION without NVIDIA_VISIBLE_DEVICES", GPU: AllGPUs}}},
		{"CUDA image without the variable", []string{"CUDA_VERSION=12.4", "NVIDIA_REQUIRE_CUDA=cuda>=12.4"}, nil},
	} {
		if diff := cmp.Diff(tt.want, Container{Env: tt.env}.ByEnvironment()); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
}

func TestByOthers(t *testing.T) {
	annotations := func(key, value string) map[string]string {
		all := map[string]string{key: value}
		for i := range 20 { // the order of a map is random
			all[fmt.Sprint("other", i)] = "nvidia.com/gpu=9"
		}
		return all
	}
	for _, tt := range []struct {
		name string
		c    Container
		want []Reference
	}{
		{"nothing", Container{Env: []string{"NVIDIA_VISIBLE_DEVICES=all"}}, nil},
		{"mounts", Container{Mounts: []string{"/x", "/var/run/nvidia-container-devices/GPU-x", "run/nvidia-container-devices/./1/"}}, []Reference{
			{By: `a volumeMount at "/var/run/nvidia-container-devices/GPU-x"`, GPU: "GPU-x"},
			{By: `a volumeMount at "run/nvidia-container-devices/./1/"`, GPU: "1"},
		}},
		{"annotations", Container{PodAnnotations: annotations("cdi.k8s.io/p", "a.b/c=d, nvidia.com/gpu=0"), Annotations: annotations("x.cdi.k8s.io/c", "acme.org/gpu=1,nri-vgpu.io/env=void")}, []Reference{
			{By: "the annotation cdi.k8s.io/p", GPU: "0"}, {By: "the annotation x.cdi.k8s.io/c", GPU: "1"},
		}},
		{"CDI devices", Container{CDIDevices: []string{"a.b/c=d", "nvidia.com/gpu=all"}}, []Reference{{By: "the CDI device nvidia.com/gpu=all", GPU: AllGPUs}}},
		{"device nodes", Container{Devices: []string{"/dev/fuse", "/dev/nvidiactl", "/dev/nvidia3", "/dev/dxg", "/dev/3"}}, []Reference{
			{By: "the device node /dev/nvidia3", GPU: "3", Node: true}, {By: "the device node /dev/dxg", GPU: AllGPUs},
		}},
		{"all device nodes", Container{Devices: []string{"/dev/nvidia3", "/dev/kmsg"}, CDIDevices: []string{"nvidia.com/gpu=0"}}, []Reference{{By: "the CDI device nvidia.com/gpu=0", GPU: "0"}}},
	} {
		if diff := cmp.Diff(tt.want, tt.c.ByOthers("acme.org/gpu")); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
}

func TestWithin(t *testing.T) {
	for destination, want := range map[string]bool{
		"/a/b": true, "/a/b/": true, "a/b": true, "/a/b/c": true, "/a/./x/../b/c": true,
		"/a/bc": false, "/a": false, "/": false, "": false, "/x/a/b": false,
	} {
		if got := Within(destination, "/a/b"); got != want {
			t.Errorf("%q is within /a/b: %t, want %t", destination, got, want)
		}
	}
}
