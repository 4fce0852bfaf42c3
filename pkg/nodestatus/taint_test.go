// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
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

// tainter returns a patcher whose loop the test drives, with a Node in the API server.
func tainter(t *testing.T, policy string) (*Patcher, *nodeAPI, *logBuffer) {
	t.Helper()
	api, log := newNodeAPI(t), &logBuffer{}
	api.create()
	p := remover(t, api)
	p.opts.Config.Health.Taint, p.opts.Log = policy, slog.New(slog.NewTextHandler(log, nil))
	return p, api, log
}

func isTainted(api *nodeAPI) bool {
	return slices.ContainsFunc(api.node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == TaintKey })
}

func TestTheTaintIsKept(t *testing.T) {
	p, api, log := tainter(t, config.TaintAny)
	now := time.Now()
	seen := func(healthy bool, age time.Duration) Observation {
		return Observation{Report: &nodereport.Report{GPUs: []gpu.GPU{testGPU("GPU-a", healthy)}}, Alive: now.Add(-age)}
	}
	for _, step := range []struct {
		name    string
		o       Observation
		tainted bool
		patches int
	}{
		{"healthy", seen(true, 0), false, 0},
		{"unhealthy", seen(false, 0), true, 1},
		{"unhealthy as before", seen(false, 0), true, 1},
		{"the agent is away", seen(true, time.Hour), true, 1},
		{"healthy again", seen(true, 0), false, 2},
		{"the agent is away again", seen(false, time.Hour), false, 2},
	} {
		p.keepTaint(t.Context(), api.node, step.o, now)
		if isTainted(api) != step.tainted || api.patchCount() != step.patches {
			t.Errorf("%s: tainted is %t, %d patches", step.name, isTainted(api), api.patchCount())
		}
	}
	if n := strings.Count(log.String(), "changed the node's taint"); n != 2 {
		t.Errorf("%d changes were logged, want 2:\n%s", n, log)
	}
	if node, _ := p.node.get(); node == nil || node.ResourceVersion != api.node.ResourceVersion {
		t.Error("the answer to the patch is not what is known of the node")
	}
}

func TestATaintThatCannotBeWrittenIsTriedAgainLater(t *testing.T) {
	p, api, log := tainter(t, config.TaintAny)
	api.breakWith(http.StatusInternalServerError)
	begin := time.Now()
	bad := Observation{Report: &nodereport.Report{GPUs: []gpu.GPU{testGPU("GPU-a", false)}}, Alive: begin}
	for _, step := range []struct {
		after   time.Duration
		patches int
	}{{0, 1}, {10*time.Second - 1, 1}, {10 * time.Second, 2}} {
		p.keepTaint(t.Context(), api.node, bad, begin.Add(step.after))
		if n := api.patchCount(); n != step.patches {
			t.Errorf("%v later there were %d patches, want %d", step.after, n, step.patches)
		}
	}
	if n := strings.Count(log.String(), "asked to fail"); n != 1 || strings.Contains(log.String(), "changed") {
		t.Errorf("the same error is logged %d times:\n%s", n, log)
	}
	api.breakWith(0)
	p.keepTaint(t.Context(), api.node, bad, begin.Add(2*taintRetry))
	if !isTainted(api) || len(p.said) != 0 {
		t.Errorf("tainted is %t; known as broken are %v", isTainted(api), p.said)
	}
}
