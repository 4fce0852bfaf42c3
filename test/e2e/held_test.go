// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"path/filepath"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/internal/contexts"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// TestContextsAreMeasuredOnTheHost checks that a container's limits page has the size of a context
// that the agent measured on the GPU. The container's processes need no NVML to keep to their
// limit.
func TestContextsAreMeasuredOnTheHost(t *testing.T) {
	small(t)
	create(t, testbed.Pod("measured", filler("main", testbed.Limits{testbed.Memory: 2048})))
	uuid := checkFilled(t, "measured", 2*gib)
	pod := running(t, "measured")

	devices, err := limits.Read(filepath.Join(bed.ContainerFiles(pod, "main"), limits.LimitsFile))
	if err != nil || len(devices) != 1 || devices[0].UUID != uuid || devices[0].ContextBytes != contextBytes {
		t.Errorf("the limits page has %+v, %v, want a context of %d bytes", devices, err, contextBytes)
	}
	kept, err := contexts.ReadFile(paths.Contexts(filepath.Join(bed.Cluster.Root(), "var/lib/nri-vgpu")))
	if err != nil || len(kept) != gpus {
		t.Errorf("the agent stores %+v, %v, want the contexts of %d GPUs", kept, err, gpus)
	}
	for _, size := range kept {
		if size.Bytes != contextBytes || size.How != contexts.ByProcess || size.Driver == "" {
			t.Errorf("the agent stores %+v", size)
		}
	}
	if bytes, err := bed.Metric(t.Context(), "nri_vgpu_gpu_context_bytes", map[string]string{"uuid": uuid}); err != nil || bytes != contextBytes {
		t.Errorf("the metric of %s is %v, %v", uuid, bytes, err)
	}
	calls, err := bed.NVMLCalls(pod)
	if err != nil || len(calls) != 1 {
		t.Fatalf("the pod's processes are %v, %v, want one", calls, err)
	}
	for pid, n := range calls {
		if n != 0 {
			t.Errorf("process %d of the pod called NVML %d times", pid, n)
		}
	}
}
