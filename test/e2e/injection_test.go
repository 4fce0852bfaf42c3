// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// configure replaces the agent's configuration until the test ends.
func configure(t *testing.T, config string) {
	t.Helper()
	before, err := bed.SetConfig(t.Context(), config, patience)
	if before != "" {
		t.Cleanup(func() {
			if _, err := bed.SetConfig(context.Background(), before, patience); err != nil {
				t.Errorf("restore the agent's configuration: %v", err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// checkInjection checks that a pod gets its part of a GPU, to the byte, and that a pod without a
// request gets no GPU.
func checkInjection(t *testing.T) {
	t.Helper()
	two := testbed.Pod("two-gpus", testbed.Container("main", testbed.Limits{testbed.Number: 2, testbed.Memory: 2048}, "info"))
	nothing := testbed.Pod("nothing", cudaContainer(nil))
	for _, pod := range []*corev1.Pod{testbed.Pod("part", filler("main", testbed.Limits{testbed.Memory: 3072})), two, nothing} {
		create(t, pod)
	}
	checkFilled(t, "part", 3*gib)
	if info := whatSaw(t, bed, two); len(info.CUDA.Devices) != 2 {
		t.Errorf("a pod that requests parts of two GPUs sees %d", len(info.CUDA.Devices))
	}
	if info := whatSaw(t, bed, nothing); len(info.CUDA.Devices) != 0 {
		t.Errorf("a pod that requests no GPU sees %d", len(info.CUDA.Devices))
	}
}

// TestInjectionMethods tests the other methods; all other tests use the default, cdi.
func TestInjectionMethods(t *testing.T) {
	t.Run("env", func(t *testing.T) {
		configure(t, "[injection]\nmethod = \"env\"\n")
		checkInjection(t)
	})
	t.Run("direct", func(t *testing.T) {
		configure(t, bed.DirectConfig())
		checkInjection(t)
		t.Run("runc", testPlainRunc)
	})
}

// testPlainRunc runs a pod with runc itself, which does not support GPUs.
func testPlainRunc(t *testing.T) {
	class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "plain"}, Handler: "runc"}
	classes := bed.Client.NodeV1().RuntimeClasses()
	if _, err := classes.Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := classes.Delete(context.Background(), class.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	plain := func(name string, container corev1.Container) *corev1.Pod {
		pod := testbed.Pod(name, container)
		pod.Spec.RuntimeClassName = &class.Name
		return pod
	}
	nothing := plain("plain-nothing", cudaContainer(nil))
	create(t, plain("plain", filler("main", testbed.Limits{testbed.Memory: 3072})))
	create(t, nothing)
	checkFilled(t, "plain", 3*gib)
	if info := whatSaw(t, bed, nothing); len(info.CUDA.Devices) != 0 {
		t.Errorf("a pod under runc that requests no GPU sees %d", len(info.CUDA.Devices))
	}
}
