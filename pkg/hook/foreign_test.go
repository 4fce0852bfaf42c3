// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"strings"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
)

// withPlugin leaves gpuB to another device plugin.
func withPlugin(n *node) { n.foreign = func(uuid string) bool { return uuid == gpuB } }

// foreignPod adds a pod whose container requests a GPU of another device plugin.
func (n *node) foreignPod(uid string) {
	pod := n.pod(uid, "main")
	n.api.change(func() {
		pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	})
}

// TestForeignContainersKeepTheirGPUs checks that a container of another device plugin keeps the
// plugin's GPU from its creation to the next agent.
func TestForeignContainersKeepTheirGPUs(t *testing.T) {
	for _, lagging := range []bool{false, true} {
		n := newNode(t, withPlugin)
		n.foreignPod("u")
		n.api.change(func() { n.api.lagging["u"] = lagging })
		// The image requests all GPUs, and the plugin's variable comes later.
		spec := mustCreate(t, n, "u", wantsAll, addEnv(adjust.VisibleDevices+"="+gpuB))
		wantEnv(t, spec, adjust.VisibleDevices, gpuB)
		if mark := spec.Annotations[paths.AdjustedAnnotation]; mark != "foreign" {
			t.Errorf("the guard reads the mark %q", mark)
		}
		if err := start(n, "u", spec); err != nil {
			t.Error(err)
		}
		n.restartHook()
		if got := n.hook.Unadjusted(); got != 0 {
			t.Errorf("the next agent counts %d containers without limits", got)
		}
		n.keepAsking()
		n.waitAsking()
	}
}

// TestForeignContainersSeeNoOwnGPU checks that a request for a foreign resource, which any user can
// write, leads to no GPU that the node offers.
func TestForeignContainersSeeNoOwnGPU(t *testing.T) {
	n := newNode(t, withPlugin)
	n.foreignPod("u")
	for name, change := range map[string]func(*rspec.Spec){
		"all":         wantsAll,
		"ours":        addEnv(adjust.VisibleDevices + "=" + gpuA),
		"device node": addDevice("/dev/nvidia3"),
	} {
		if _, err := n.create("u", change); err == nil || !strings.Contains(err.Error(), gpuA) || !strings.Contains(err.Error(), "node.gpus.exclude") {
			t.Errorf("%s: %v", name, err)
		}
	}
	bare := &rspec.Spec{Process: &rspec.Process{Env: []string{adjust.VisibleDevices + "=all"}}}
	if err := start(n, "u", bare); err == nil {
		t.Error("started with all GPUs")
	}
	spec := mustCreate(t, n, "u", wantsAll, addDevice("/dev/nvidia5"))
	wantEnv(t, spec, adjust.VisibleDevices, "void")
	if err := start(n, "u", spec); err != nil {
		t.Error(err)
	}
}

// TestNoContainerHasGPUsOfTwoPlugins checks that a container that requests GPUs of two plugins is
// refused, before it occupies capacity.
func TestNoContainerHasGPUsOfTwoPlugins(t *testing.T) {
	n := newNode(t, withPlugin)
	pod := n.pod("u", "main=1024")
	n.api.change(func() { pod.Spec.Containers[0].Resources.Limits["nvidia.com/gpu"] = resource.MustParse("1") })
	if _, err := n.create("u"); err == nil || !strings.Contains(err.Error(), "nvidia.com/gpu, which another device plugin serves") {
		t.Errorf("got %v", err)
	}
	if n.ledger.Holds("u") {
		t.Error("it holds GPUs")
	}
}
