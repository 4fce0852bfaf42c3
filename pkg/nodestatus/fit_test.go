// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// published bounds the time from the agent's report to the change of the Node.
const published = 200 * time.Millisecond

func fitConfig() config.Config {
	cfg := nativeOnly()
	cfg.Scheduling.Mode = config.ScheduleByFit
	return cfg
}

// fitReport returns a report of one GPU, with used turns and labels.
func fitReport(cfg config.Config, turns int64, labels map[string]string) nodereport.Report {
	gpus := []gpu.GPU{testGPU("GPU-a", true)}
	sums := healthySums(gpus, cfg)
	if labels != nil {
		sums.Fit = &nodereport.Fit{Labels: labels}
	}
	if turns > 0 {
		sums.Used = map[string]int64{request.FitTurn: turns}
	}
	return nodereport.Report{Heartbeat: time.Now(), PluginRegistered: true, GPUs: gpus, Sums: sums}
}

// labels returns the labels of the Node.
func (r *rig) labels() map[string]string {
	r.api.mu.Lock()
	defer r.api.mu.Unlock()
	return maps.Clone(r.api.node.Labels)
}

// awaitFit fails unless the Node has the resources of the GPU, the turns and the labels in time.
func (r *rig) awaitFit(turns int64, labels map[string]string, limit time.Duration) {
	r.t.Helper()
	want := worth(r.patcher.opts.Config, testGPU("GPU-a", true))
	if turns > 0 {
		want[request.FitTurn] = turns
	}
	r.await(want, limit)
	// Resources and labels are in the same patch.
	if diff := cmp.Diff(labels, r.labels(), cmpopts.EquateEmpty()); diff != "" {
		r.t.Fatalf("labels (-want +got):\n%s\nlog:\n%s", diff, r.log)
	}
}

func TestPatcherWritesFitLabels(t *testing.T) {
	t.Parallel()
	const memory, second = request.FitPrefix + "1a-memory", request.FitPrefix + "1b-memory"
	r := startRig(t, fitConfig(), time.Minute)
	cfg := r.patcher.opts.Config
	with := func(labels map[string]string) map[string]string {
		all := map[string]string{"zone": "a", request.FitLabel: "true"}
		maps.Copy(all, labels)
		return all
	}

	first := map[string]string{memory: "16384", "zone": "b"} // a report changes no other label
	r.write(fitReport(cfg, 0, first))
	r.api.createWith(`{"metadata":{"labels":{"zone":"a","nri-vgpu.io/fit-8d-cores":"7"}}}`)
	r.awaitFit(1, with(map[string]string{memory: "16384"}), polled)
	if n := r.api.patchCount(); n != 1 {
		t.Errorf("resources and labels took %d patches, want 1", n)
	}
	r.write(fitReport(cfg, 1, map[string]string{memory: "4096", second: "1024"}))
	r.awaitFit(2, with(map[string]string{memory: "4096", second: "1024"}), published)
	r.write(fitReport(cfg, 1, map[string]string{memory: "4096", second: "1024"}))
	r.still(2 * pollInterval)

	r.api.interfere(`{"metadata":{"labels":{"` + memory + `":"9","nri-vgpu.io/fit":null}}}`)
	waitLabels(t, r, with(map[string]string{memory: "4096", second: "1024"}))

	// No GPU has room. Without labels of a size, no pod fits.
	r.write(fitReport(cfg, 1, map[string]string{}))
	waitLabels(t, r, with(nil))
	r.awaitFit(2, with(nil), published)

	// An agent of another release, or in another mode, writes no labels.
	r.write(fitReport(cfg, 1, nil))
	r.awaitFit(1, map[string]string{"zone": "a"}, published)
}

func waitLabels(t *testing.T, r *rig, want map[string]string) {
	t.Helper()
	eventually.Succeeds(t, promptly, "the Node has the labels", func(context.Context) error {
		if diff := cmp.Diff(want, r.labels(), cmpopts.EquateEmpty()); diff != "" {
			return fmt.Errorf("labels (-want +got):\n%s\nlog:\n%s", diff, r.log)
		}
		return nil
	})
}

// TestPatcherKeepsTurnsInUse checks that a patcher in another mode removes the labels, and offers as
// many turns as pods have.
func TestPatcherKeepsTurnsInUse(t *testing.T) {
	t.Parallel()
	r := startRig(t, nativeOnly(), time.Minute)
	r.api.createWith(`{"metadata":{"labels":{"nri-vgpu.io/fit":"true","nri-vgpu.io/fit-1a-memory":"5"},` +
		`"annotations":{"nri-vgpu.io/advertised":"nri-vgpu.io/fit-turn"}},` +
		`"status":{"capacity":{"nri-vgpu.io/fit-turn":"4"},"allocatable":{"nri-vgpu.io/fit-turn":"4"}}}`)
	r.write(fitReport(fitConfig(), 3, map[string]string{request.FitPrefix + "1a-memory": "5"}))
	r.awaitFit(3, nil, polled)
	r.write(fitReport(fitConfig(), 0, nil))
	r.awaitFit(0, nil, published)
}

// TestFitLabelsGoWithTheResources checks that a withdrawal removes the labels, and that a Node whose
// pods are not known yet keeps them.
func TestFitLabelsGoWithTheResources(t *testing.T) {
	t.Parallel()
	r := startRig(t, fitConfig(), time.Minute)
	r.api.create()
	cfg := r.patcher.opts.Config
	labels := map[string]string{request.FitPrefix + "1a-memory": "16384"}
	all := map[string]string{request.FitLabel: "true", request.FitPrefix + "1a-memory": "16384"}
	r.write(fitReport(cfg, 0, labels))
	r.awaitFit(1, all, polled)

	unknown := fitReport(cfg, 0, nil)
	unknown.Sums = nil
	r.write(unknown)
	r.still(2 * published)
	r.awaitFit(1, all, published)

	unregistered := fitReport(cfg, 0, labels)
	unregistered.PluginRegistered = false
	r.write(unregistered)
	r.await(Resources{}, polled)
	waitLabels(t, r, nil)
}

func TestKeptLabels(t *testing.T) {
	p := remover(t, newNodeAPI(t))
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{
		"zone": "a", request.FitLabel: "true", request.FitPrefix + "1a-memory": "5", "nri-vgpu.io/fitting": "7",
	}}}
	want := map[string]string{request.FitLabel: "true", request.FitPrefix + "1a-memory": "5"}
	if diff := cmp.Diff(want, p.kept(node).labels); diff != "" {
		t.Error(diff)
	}
}
