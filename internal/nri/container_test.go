// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"slices"
	"testing"

	"github.com/containerd/nri/pkg/api"
)

func TestDevices(t *testing.T) {
	container := &api.Container{
		CDIDevices: []*api.CDIDevice{{Name: "nvidia.com/gpu=0"}, {Name: "example.com/nic=a"}},
		Linux: &api.LinuxContainer{Devices: []*api.LinuxDevice{
			{Path: "/dev/nvidia0", Type: "c"}, {Path: "/dev/kmsg", Type: "b"}, {Path: "/dev/pipe", Type: "p"},
		}},
	}
	if got, want := CDIDevices(container), []string{"nvidia.com/gpu=0", "example.com/nic=a"}; !slices.Equal(got, want) {
		t.Errorf("CDI devices %q, want %q", got, want)
	}
	if got, want := DevicePaths(container), []string{"/dev/nvidia0", "/dev/pipe"}; !slices.Equal(got, want) {
		t.Errorf("device nodes %q, want %q", got, want)
	}
	if CDIDevices(&api.Container{}) != nil || DevicePaths(&api.Container{}) != nil {
		t.Error("a container without devices has some")
	}
}
