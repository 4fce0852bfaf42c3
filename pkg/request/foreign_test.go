// SPDX-License-Identifier: Apache-2.0

package request

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

func TestForeign(t *testing.T) {
	pod := podOf(
		container("plugin", asks{"nvidia.com/gpu": "1"}),
		container("mig", asks{"nvidia.com/mig-1g.5gb": "2", "nvidia.com/gpu": "0"}),
		container("none", asks{"nvidia.com/gpu": "0"}),
		container("ours", asks{"nri-vgpu.io/vgpu-memory": "1024"}),
	)
	pod.Spec.InitContainers = append(pod.Spec.InitContainers, container("init", asks{"nvidia.com/gpu": "1"}))
	node := config.Default().Node
	for name, want := range map[string]string{
		"init": "nvidia.com/gpu", "plugin": "nvidia.com/gpu", "mig": "nvidia.com/mig-1g.5gb", "none": "", "ours": "", "absent": "",
	} {
		if got := Foreign(pod, name, node); got != want {
			t.Errorf("%s requests %q, want %q", name, got, want)
		}
	}
	want := map[string]int{"nvidia.com/gpu": 2, "nvidia.com/mig-1g.5gb": 1}
	if diff := cmp.Diff(want, ForeignContainers(pod, node)); diff != "" {
		t.Error(diff)
	}
	if got := ForeignContainers(pod, config.Node{}); got != nil {
		t.Errorf("without foreign resources: %v", got)
	}
}

func TestNoContainerRequestsOfTwoPlugins(t *testing.T) {
	both := container("both", asks{"nri-vgpu.io/vgpu-memory": "1024", "nvidia.com/gpu": "1"})
	if _, err := Read(podOf(both), config.Default()); err == nil || !strings.Contains(err.Error(), `container "both": requests GPUs of nri-vgpu (dialect native) and nvidia.com/gpu`) {
		t.Errorf("got %v", err)
	}
	beside := podOf(container("a", asks{"nri-vgpu.io/vgpu-memory": "1024"}), container("b", asks{"nvidia.com/gpu": "1"}))
	if _, err := Read(beside, config.Default()); err != nil {
		t.Error(err)
	}
}
