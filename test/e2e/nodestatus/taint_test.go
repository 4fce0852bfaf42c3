// SPDX-License-Identifier: Apache-2.0

package nodestatus_test

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/nodestatus"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// TestTaint checks that the patcher, if configured and with the needed right, taints a Node with an
// unhealthy GPU. The right permits no other change.
func TestTaint(t *testing.T) {
	if err := install(t.Context(), plane.admin, "../../../deploy/taint.yaml"); err != nil {
		t.Fatal(err)
	}
	admin := clientOf(t, plane.admin)
	t.Cleanup(func() {
		roles := admin.RbacV1()
		ctx, name := context.Background(), account+"-taint"
		if err := roles.ClusterRoleBindings().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := roles.ClusterRoles().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	w := &world{t: t, node: "tainted", admin: admin, report: t.TempDir() + "/" + nodereport.FileName}
	w.register()
	t.Cleanup(w.remove)
	other := `{"spec":{"taints":[{"key":"example.com/other","effect":"NoSchedule"}]}}`
	if _, err := admin.CoreV1().Nodes().Patch(t.Context(), w.node, types.MergePatchType, []byte(other), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	stolen := clientOf(t, patcherConfig(t, w.node))
	w.runPatcher(config.TaintAny)
	has := func(want bool) func() bool {
		return func() bool {
			node, err := admin.CoreV1().Nodes().Get(t.Context(), w.node, metav1.GetOptions{})
			if err != nil {
				return false
			}
			keys := []string{}
			for _, taint := range node.Spec.Taints {
				keys = append(keys, taint.Key)
			}
			return slices.Contains(keys, "example.com/other") && slices.Contains(keys, nodestatus.TaintKey) == want
		}
	}
	w.reportGPU(false)
	eventually.Holds(t, 10*time.Second, "the taint is set, and the other stays", has(true))
	for what, body := range map[string]string{
		"another taint removed": `{"spec":{"taints":[{"key":"nri-vgpu.io/unhealthy","effect":"NoSchedule"}]}}`,
		"unschedulable":         `{"spec":{"unschedulable":true}}`,
		"a label":               `{"metadata":{"labels":{"zone":"secret"}}}`,
	} {
		_, err := stolen.CoreV1().Nodes().Patch(t.Context(), w.node, types.MergePatchType, []byte(body), metav1.PatchOptions{})
		if !refused(err) {
			t.Errorf("%s was not refused: %v", what, err)
		}
	}
	w.reportGPU(true)
	eventually.Holds(t, 10*time.Second, "the taint is removed, and the other stays", has(false))
}

// runPatcher runs a patcher with this policy of taints until the test ends.
func (w *world) runPatcher(taint string) {
	w.t.Helper()
	cfg := config.Default()
	cfg.Health.Taint = taint
	patcher, err := nodestatus.New(nodestatus.Options{
		Client: clientOf(w.t, patcherConfig(w.t, w.node)), NodeName: w.node, Config: cfg,
		ReportPath: w.report, StaleAfter: time.Minute, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		patcher.Run(ctx)
	}()
	w.t.Cleanup(func() {
		cancel()
		<-done
	})
}

func (w *world) reportGPU(healthy bool) {
	w.t.Helper()
	w.reports(true, gpu.GPU{UUID: "GPU-a", MemoryBytes: 16 << 30, Healthy: healthy, Reason: "by the test"})
}
