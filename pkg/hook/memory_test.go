// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/nri-vgpu/nri-vgpu/internal/nri"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
)

// heap returns the number of live bytes on the heap.
func heap() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// annotated returns a pod with the most annotations that the runtime sends to plugins.
func annotated(uid string) *api.PodSandbox {
	pod := sandbox(uid)
	pod.Annotations = map[string]string{}
	for size := pod.SizeVT(); size < nri.MostBytes-(1<<10); {
		key := strconv.FormatInt(int64(len(pod.Annotations)), 36)
		pod.Annotations[key] = ""
		size += len(key) + 6
	}
	return pod
}

// TestContainersShareTheirPodsAnnotations checks that all containers of a pod share the memory of
// the pod's annotations. A pod may have tens of thousands of annotations and hundreds of
// containers.
func TestContainersShareTheirPodsAnnotations(t *testing.T) {
	pod := annotated("u")
	if err := nri.CheckPod(pod); err != nil {
		t.Fatal(err)
	}
	all := make([]adjust.Container, 64)
	before := heap()
	for i := range all {
		all[i] = describe(pod, &api.Container{Name: fmt.Sprint("c", i), Annotations: map[string]string{"a": "b"}})
	}
	if grown := (heap() - before) / int64(len(all)); grown > 4<<10 {
		t.Errorf("beside its pod's %d annotations a container takes %d KiB", len(pod.Annotations), grown>>10)
	}
	runtime.KeepAlive(all)
	runtime.KeepAlive(pod)
}

// TestSynchronizeKeepsLittle checks that the hook keeps little of the runtime's list of containers.
// Each entry may have the largest allowed size, and the agent has 512 MiB.
func TestSynchronizeKeepsLittle(t *testing.T) {
	const containers, length = 100, 400 << 10
	n := newNode(t)
	n.stopHook()
	long := []string{adjust.VisibleDevices + "=void", "LONG=" + strings.Repeat("x", length)}
	for i := range containers {
		pod := sandbox(fmt.Sprint("u", i))
		pod.Annotations = map[string]string{"long": strings.Repeat("x", length/4)}
		n.pod(pod.GetUid(), "main")
		n.keep(pod, &api.Container{Id: fmt.Sprint("c", i), PodSandboxId: pod.GetId(), Name: "main", Env: long, Args: long})
	}
	n.api.change(func() { n.api.away = true }) // the hook keeps all containers until the pods are known
	before := heap()
	n.startHook()
	if grown := heap() - before; grown > containers*length/10 {
		t.Errorf("the runtime reported %d MiB, and the hook keeps %d MiB", 2*containers*length>>20, grown>>20)
	}
}
