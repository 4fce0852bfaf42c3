// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"math"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// withPriority returns a pod that names only a priority of HAMi's dialect.
func withPriority(priority int64) *corev1.Pod {
	limits := corev1.ResourceList{"nvidia.com/priority": *resource.NewQuantity(priority, resource.DecimalSI)}
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Limits: limits}}}}}
}

// TestPrioritiesLimitNoPod checks that no number of pods with any priority prevents another pod with a
// priority.
func TestPrioritiesLimitNoPod(t *testing.T) {
	cfg := config.Default()
	cfg.Dialects.HAMi.Enabled = true
	cfg.Node.ForeignResources = nil
	gpus := []gpu.GPU{testGPU("GPU-a", true)}
	const next = 1_000_000_000_000_000 // of the next pod
	full := map[string]int64{}
	for name, tt := range map[string]struct {
		pods     []int64
		free     map[string]int64
		unfit    bool // the Node offers no GPU
		constant bool // the Node offers as much as without pods
	}{
		"no pod":          {free: request.Capacity(gpus, cfg), constant: true},
		"small":           {pods: []int64{0, 1, 10, 100, math.MaxInt32}, free: request.Capacity(gpus, cfg), constant: true},
		"large":           {pods: []int64{next, next - 1, next, 2 * next}, free: request.Capacity(gpus, cfg)},
		"pods on no GPU":  {pods: []int64{10}, free: full, constant: true, unfit: true},
		"no use, no room": {free: full, unfit: true},
	} {
		t.Run(name, func(t *testing.T) {
			var pods []*corev1.Pod
			for _, priority := range tt.pods {
				pods = append(pods, withPriority(priority))
			}
			used := request.Used(pods, cfg.Dialects)
			got := capacity(gpus, nodereport.Sums{Used: used, Free: tt.free}, cfg)
			left := got["nvidia.com/priority"] - used["nvidia.com/priority"]
			if left < next && !tt.unfit || left < 0 {
				t.Errorf("%d of %d are left", left, got["nvidia.com/priority"])
			}
			if tt.constant && got["nvidia.com/priority"] != 2*next {
				t.Errorf("the Node offers %d, which changes with the pods", got["nvidia.com/priority"])
			}
		})
	}
	huge := capacity(gpus, nodereport.Sums{Used: map[string]int64{"nvidia.com/priority": math.MaxInt64}}, cfg)
	if huge["nvidia.com/priority"] != math.MaxInt64 {
		t.Errorf("with the largest number, the Node offers %d", huge["nvidia.com/priority"])
	}
	cfg.Dialects.HAMi.Enabled = false
	if off := capacity(gpus, nodereport.Sums{Free: request.Capacity(gpus, cfg)}, cfg); off["nvidia.com/priority"] != 0 {
		t.Errorf("without the dialect, the Node offers %d", off["nvidia.com/priority"])
	}
}
