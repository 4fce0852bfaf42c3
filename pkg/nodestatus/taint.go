// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// TaintKey is the key of the taint that keeps pods without a toleration off a
// Node with unhealthy GPUs, if health.taint demands it.
const TaintKey = "nri-vgpu.io/unhealthy"

// taintRetry is the pause after a failed write of a taint.
const taintRetry = 10 * time.Second

// wantsTaint reports whether the Node must have the taint, and whether the answer is known. The
// answer is unknown while the agent does not report, unless the policy never taints.
func wantsTaint(policy string, o Observation, staleAfter time.Duration, now time.Time) (want, known bool) {
	if policy != config.TaintAny && policy != config.TaintAll {
		return false, true
	}
	if o.Report == nil || o.Age(now) > staleAfter || len(o.Report.GPUs) == 0 {
		return false, false
	}
	bad := len(unhealthy(o.Report.GPUs))
	if policy == config.TaintAll {
		return bad == len(o.Report.GPUs), true
	}
	return bad > 0, true
}

// taints returns the Node's taints with or without the patcher's taint, and reports whether the
// patcher's taint must change.
func taints(node *corev1.Node, want bool) ([]corev1.Taint, bool) {
	ours := func(t corev1.Taint) bool { return t.Key == TaintKey }
	has := slices.ContainsFunc(node.Spec.Taints, ours)
	rest := slices.DeleteFunc(slices.Clone(node.Spec.Taints), ours)
	if want {
		rest = append(rest, corev1.Taint{Key: TaintKey, Effect: corev1.TaintEffectNoSchedule})
	}
	return rest, has != want
}

// keepTaint adds or removes the Node's taint, if necessary.
func (p *Patcher) keepTaint(ctx context.Context, node *corev1.Node, o Observation, now time.Time) {
	want, known := wantsTaint(p.opts.Config.Health.Taint, o, p.opts.StaleAfter, now)
	list, change := taints(node, want)
	if !known || !change || now.Before(p.taintAfter) {
		return
	}
	err := p.writeTaints(ctx, node, list)
	p.logOnce("taint", err)
	if err != nil {
		p.taintAfter = now.Add(taintRetry)
		return
	}
	p.opts.Log.Warn("changed the node's taint", "node", node.Name, "taint", TaintKey, "set", want)
}

// writeTaints replaces the list of taints, since a merge patch cannot merge lists. The write fails
// if the Node has changed since the patcher read the list.
func (p *Patcher) writeTaints(ctx context.Context, node *corev1.Node, list []corev1.Taint) error {
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": node.ResourceVersion},
		"spec":     map[string]any{"taints": list},
	})
	if err != nil {
		return fmt.Errorf("encode taints: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, patchTimeout)
	defer cancel()
	patched, err := p.opts.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: FieldManager})
	if err != nil {
		return fmt.Errorf("write the taint of node %q (health.taint needs the rights in deploy/taint.yaml): %w", node.Name, err)
	}
	p.node.observe(patched)
	return nil
}
