package nodestatus

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/nodereport"
)

func TestWantsTaint(t *testing.T) {
	now := time.Now()
	good, bad := testGPU("GPU-a", true), testGPU("GPU-b", false)
	tests := []struct {
		name        string
		policy      string
		age         time.Duration
		gpus        []gpu.GPU
		want, known bool
	}{
		{"off", config.TaintOff, 0, []gpu.GPU{bad}, false, true},
		{"off, agent away", config.TaintOff, time.Hour, []gpu.GPU{bad}, false, true},
		{"any, none", config.TaintAny, 0, []gpu.GPU{good}, false, true},
		{"any, one", config.TaintAny, 0, []gpu.GPU{good, bad}, true, true},
		{"all, one", config.TaintAll, 0, []gpu.GPU{good, bad}, false, true},
		{"all, all", config.TaintAll, 0, []gpu.GPU{bad, bad}, true, true},
		{"no GPUs", config.TaintAll, 0, nil, false, false},
		{"agent away", config.TaintAny, time.Hour, []gpu.GPU{bad}, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := Observation{Report: &nodereport.Report{GPUs: tt.gpus}, Alive: now.Add(-tt.age)}
			if want, known := wantsTaint(tt.policy, o, time.Minute, now); want != tt.want || known != tt.known {
				t.Errorf("got %v, %v; want %v, %v", want, known, tt.want, tt.known)
			}
		})
	}
	if _, known := wantsTaint(config.TaintAny, Observation{}, time.Minute, now); known {
		t.Error("before the first report something is known")
	}
}

func TestTaints(t *testing.T) {
	other := corev1.Taint{Key: "example.com/other", Effect: corev1.TaintEffectNoExecute}
	ours := corev1.Taint{Key: TaintKey, Effect: corev1.TaintEffectNoSchedule}
	tests := []struct {
		name   string
		have   []corev1.Taint
		want   bool
		list   []corev1.Taint
		change bool
	}{
		{"set", []corev1.Taint{other}, true, []corev1.Taint{other, ours}, true},
		{"stays", []corev1.Taint{ours, other}, true, []corev1.Taint{other, ours}, false},
		{"removed", []corev1.Taint{ours, other}, false, []corev1.Taint{other}, true},
		{"never there", []corev1.Taint{other}, false, []corev1.Taint{other}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			node := &corev1.Node{Spec: corev1.NodeSpec{Taints: tt.have}}
			list, change := taints(node, tt.want)
			if diff := cmp.Diff(tt.list, list); diff != "" || change != tt.change {
				t.Errorf("change: %v, want %v; %s", change, tt.change, diff)
			}
		})
	}
}
