package nodestatus

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/nri-vgpu/nri-vgpu/pkg/volcano"
)

// removeRetry is the pause after the API server has not answered, or a Node was
// written meanwhile.
const removeRetry = time.Second

// Remove takes off the Node all that patchers have put there: resources,
// annotations, condition and taint. It tries until ctx ends.
func (p *Patcher) Remove(ctx context.Context) error {
	for {
		clean, err := p.removeOnce(ctx)
		if clean {
			return nil
		}
		p.sayError("remove", err)
		select {
		case <-ctx.Done():
			return fmt.Errorf("take everything off node %q: %w, last: %w", p.opts.NodeName, ctx.Err(), err)
		case <-time.After(removeRetry):
		}
	}
}

// removeOnce writes what must change. The Node is clean when nothing must.
func (p *Patcher) removeOnce(ctx context.Context) (clean bool, err error) {
	node, err := p.read(ctx)
	if err != nil || node == nil {
		return err == nil, err // a Node that is gone has nothing of us
	}
	patch := Plan(node, Resources{}, p.claimed)
	patch.RemoveCondition = currentCondition(node) != nil
	patch.Volcano = map[string]*string{}
	p.volcano.withdraw(node, p.opts.Config, patch.Volcano)
	if _, locked := node.Annotations[volcano.Lock]; locked && len(patch.Volcano) > 0 {
		patch.Volcano[volcano.Lock] = nil
	}
	list, tainted := taints(node, false)
	if patch.Empty() && !tainted {
		return true, nil
	}
	if !patch.Empty() {
		if node, err = p.write(ctx, patch); err != nil {
			return false, err
		}
		p.opts.Log.Info("took everything off the node", "node", node.Name)
	}
	if tainted {
		err = p.writeTaints(ctx, node, list)
	}
	return false, err
}

// read gives the Node as the API server has it; nil where there is none. The
// patcher may list, not get.
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
