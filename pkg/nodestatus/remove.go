// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/volcano"
	"github.com/nri-vgpu/nri-vgpu/internal/loop"
)

// removeRetry is the pause after a request without an answer, or after a conflicting write of the
// Node.
const removeRetry = time.Second

// Remove removes everything that patchers have added to the Node: resources,
// labels, annotations, condition and taint. Remove retries until ctx ends.
func (p *Patcher) Remove(ctx context.Context) error {
	for {
		clean, err := p.removeOnce(ctx)
		if clean {
			return nil
		}
		p.logOnce("remove", err)
		if !loop.Sleep(ctx, removeRetry) {
			return fmt.Errorf("remove nri-vgpu's entries from node %q: %w, last: %w", p.opts.NodeName, ctx.Err(), err)
		}
	}
}

// removeOnce writes the necessary changes. The Node is clean if no change is
// necessary.
func (p *Patcher) removeOnce(ctx context.Context) (clean bool, err error) {
	node, err := p.read(ctx)
	if err != nil || node == nil {
		return err == nil, err // a deleted Node needs no removal
	}
	patch := Plan(node, Resources{}, p.claimed)
	patch.Labels = planLabels(node, nil)
	patch.RemoveCondition = currentCondition(node) != nil
	patch.Annotations = map[string]*string{}
	p.volcano.withdraw(node, p.opts.Config, patch.Annotations)
	if _, locked := node.Annotations[volcano.Lock]; locked && len(patch.Annotations) > 0 {
		patch.Annotations[volcano.Lock] = nil
	}
	planGPUs(node, Observation{}, nil, p.opts.Config, patch.Annotations)
	list, tainted := taints(node, false)
	if patch.Empty() && !tainted {
		return true, nil
	}
	if !patch.Empty() {
		if node, err = p.write(ctx, patch); err != nil {
			return false, err
		}
		p.opts.Log.Info("removed nri-vgpu's entries from the node", "node", node.Name)
	}
	if tainted {
		err = p.writeTaints(ctx, node, list)
	}
	return false, err
}

// read returns the Node from the API server, or nil if no Node exists. read lists Nodes, because
// the patcher has no permission to get a Node.
func (p *Patcher) read(ctx context.Context) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, patchTimeout)
	defer cancel()
	list, err := p.opts.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, p.opts.NodeName).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("read node %q: %w", p.opts.NodeName, err)
	}
	for i := range list.Items {
		if list.Items[i].Name == p.opts.NodeName {
			return &list.Items[i], nil
		}
	}
	return nil, nil
}
