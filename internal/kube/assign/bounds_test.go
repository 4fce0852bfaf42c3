// SPDX-License-Identifier: Apache-2.0

package assign

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

func TestBoundsAreDocumented(t *testing.T) {
	documented.Bound(t, "an assignment of GPUs by nri-vgpu-scheduler", documented.Bytes(mostBytes))
}

// TestTheLargestAssignmentIsObeyed checks that every assignment is smaller than the bound.
func TestTheLargestAssignmentIsObeyed(t *testing.T) {
	var node []gpu.GPU
	for i := range request.MaxGPUs {
		node = append(node, gpu.GPU{UUID: fmt.Sprintf("GPU-%08x-0000-0000-0000-000000000000", i), MemoryBytes: 80 * gib, Healthy: true})
	}
	var containers []corev1.Container
	for i := range request.MostAsking {
		containers = append(containers, container(fmt.Sprintf("%063d", i), metagpu+"=16"))
	}
	asked := read(t, pod(containers...))
	var allocations []placement.Allocation
	for _, c := range asked.Containers {
		a := placement.Allocation{Container: c.Name}
		for _, g := range node {
			a.Devices = append(a.Devices, placement.Device{UUID: g.UUID, ComputePPM: 10_000})
		}
		allocations = append(allocations, a)
	}
	text, err := Format(asked, allocations)
	if err != nil {
		t.Fatal(err)
	}
	bound, err := Bind(asked, text, node)
	if err != nil {
		t.Fatal(err)
	}
	checkBound(t, asked, bound, node)
}

// TestAssignmentsAreBounded checks that Bind refuses hostile texts soon. The runtime waits for
// Bind, and starts no other container meanwhile.
func TestAssignmentsAreBounded(t *testing.T) {
	asked, node := read(t, pod(container("a", metagpu+"=50"))), gpus(request.MaxGPUs)
	for name, unit := range map[string]string{
		"GPUs": `"GPU-0:10000",`, "empty names": `"",`, "lists": `[[[[`, "escapes": `"\u0000",`, "one name": "x",
	} {
		for length, tooLong := range map[int]bool{mostBytes: false, mostBytes + 1: true, 256 << 10: true} {
			text := `{"a":[` + strings.Repeat(unit, length/len(unit)) + `""]}`
			text += strings.Repeat(" ", max(length-len(text), 0))
			begin := time.Now()
			_, err := Bind(asked, text[:length], node)
			took := time.Since(begin)
			if err == nil || strings.HasSuffix(err.Error(), "allowed: 131072") != tooLong {
				t.Errorf("%d bytes of %s: %.200v", length, name, err)
			}
			if took > 200*time.Millisecond {
				t.Errorf("%d bytes of %s took %v", length, name, took)
			}
		}
	}
}
