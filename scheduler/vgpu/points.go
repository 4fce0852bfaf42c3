// SPDX-License-Identifier: Apache-2.0

package vgpu

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/util"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/choice"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/resize"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// PreFilter parses the request of a pod. The framework skips the plugin for pods that request no
// GPU.
func (p *Plugin) PreFilter(_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	p.unseen.clear() // the snapshot is new, or contains the members of the pod's group
	asked, asks, err := p.requestOf(pod)
	if err != nil {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	if !asks {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	a := p.newAsking(asked, pod)
	a.group = state.IsPodGroupSchedulingCycle()
	state.Write(stateKey, a)
	return nil, nil
}

// PreFilterExtensions returns nil, because Filter reads all pods from the NodeInfo.
func (*Plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter checks whether the node's single GPUs, and the sums of the node's resources, have room for
// the pod.
func (p *Plugin) Filter(_ context.Context, state fwk.CycleState, _ *corev1.Pod, info fwk.NodeInfo) *fwk.Status {
	asked, ok := askingOf(state)
	if !ok {
		return nil
	}
	switch verdict, err := p.verdictOn(asked, info); {
	case err != nil:
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	case verdict.short != "":
		return fwk.NewStatus(fwk.Unschedulable, "Insufficient "+verdict.short)
	case !verdict.fits:
		return fwk.NewStatus(fwk.Unschedulable, "no GPU of the node has room for the pod")
	}
	return nil
}

// PreScore opens the accounts of all nodes with room, so that all costs are relative to the same
// room.
func (p *Plugin) PreScore(_ context.Context, state fwk.CycleState, _ *corev1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	asked, ok := askingOf(state)
	if !ok || p.policy != Fragmentation || asked.group {
		return nil
	}
	for _, info := range nodes {
		asked.outlook.account(p.viewOf(info), info)
	}
	return nil
}

// Score returns the score of the pod's best placement on the node, or its cost with the policy
// fragmentation.
func (p *Plugin) Score(_ context.Context, state fwk.CycleState, _ *corev1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	asked, ok := askingOf(state)
	if !ok {
		return 0, nil
	}
	value, err := p.valueOn(asked, info)
	if err != nil {
		return 0, fwk.AsStatus(err)
	}
	return p.score(value), nil
}

// ScoreExtensions returns the plugin if Score returns costs, and nil if Score returns scores.
func (p *Plugin) ScoreExtensions() fwk.ScoreExtensions {
	if p.policy == Fragmentation {
		return p
	}
	return nil
}

// NormalizeScore maps costs to scores: the lowest cost to MaxScore, and the highest cost to 0. If
// all costs are equal, every node gets MaxScore.
func (*Plugin) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *corev1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	if len(scores) == 0 {
		return nil
	}
	least, most := scores[0].Score, scores[0].Score
	for _, s := range scores {
		least, most = min(least, s.Score), max(most, s.Score)
	}
	for i := range scores {
		cost := scores[i].Score
		scores[i].Score = fwk.MaxScore
		if most > least {
			scores[i].Score = int64(math.Round(float64(fwk.MaxScore) * float64(most-cost) / float64(most-least)))
		}
	}
	return nil
}

// Reserve chooses the pod's GPUs on the node.
func (p *Plugin) Reserve(_ context.Context, state fwk.CycleState, pod *corev1.Pod, nodeName string) *fwk.Status {
	asked, ok := askingOf(state)
	if !ok {
		return nil
	}
	info, err := p.handle.SnapshotSharedLister().NodeInfos().Get(nodeName)
	if err != nil {
		return fwk.AsStatus(fmt.Errorf("read node %s: %w", nodeName, err))
	}
	assigned, err := p.choose(asked, info)
	if noRoom := (*placement.NoRoomError)(nil); errors.As(err, &noRoom) {
		return fwk.NewStatus(fwk.Unschedulable, err.Error())
	} else if err != nil {
		return fwk.AsStatus(err)
	}
	p.reserved.Store(pod.UID, assigned)
	p.unseen.add(nodeName, pod)
	return nil
}

// choose returns the assignment of a pod on a node. choose first tries to keep the room for
// nominated pods free. If the pod then finds no room, choose ignores the nominated pods.
func (p *Plugin) choose(asked *asking, info fwk.NodeInfo) (string, error) {
	if nominated := p.nominated(asked, info.Node().Name); len(nominated) > 0 {
		if assigned, err := p.chooseIn(asked, p.viewFor(asked, info, nominated...), info); err == nil {
			return assigned, nil
		}
	}
	return p.chooseIn(asked, p.viewFor(asked, info), info)
}

func (p *Plugin) chooseIn(asked *asking, v *view, info fwk.NodeInfo) (string, error) {
	pod, err := p.here(asked, v, info)
	if err != nil {
		return "", err
	}
	all, _, err := v.Ledger.Plan(p.prefer(asked, v, pod, info))
	if err != nil {
		return "", err
	}
	return assign.Format(pod, all)
}

// prefer restricts a pod to the GPUs with the least cost, if these GPUs have room for the pod. If the
// pod has a policy, prefer leaves the choice to the policy.
func (p *Plugin) prefer(asked *asking, v *view, pod request.Pod, info fwk.NodeInfo) request.Pod {
	asking := slices.DeleteFunc(slices.Clone(pod.Containers), func(c request.Container) bool { return !c.Asks() })
	if p.policy != Fragmentation || len(asking) != 1 || pod.Policy != "" {
		return pod
	}
	_, uuids := asked.outlook.cost(asked.outlook.open(v, info), asked.kind)
	preferring := pod
	preferring.Containers = slices.Clone(pod.Containers)
	for i, c := range preferring.Containers {
		shares := slices.Clone(c.Shares)
		for k := range shares {
			if shares[k].SplitPPM != 0 || len(shares[k].GPUs) > 0 {
				return pod // the share may be divided, or is bound to other GPUs
			}
			shares[k].GPUs = uuids
		}
		preferring.Containers[i].Shares = shares
	}
	if len(uuids) == 0 || !v.Ledger.Fits(preferring) {
		return pod
	}
	return preferring
}

// Unreserve drops the assignment that Reserve chose.
func (p *Plugin) Unreserve(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, nodeName string) {
	p.reserved.Delete(pod.UID)
	p.unseen.remove(nodeName, pod.UID)
}

// Bind writes the pod's binding and assignment in one request.
func (p *Plugin) Bind(ctx context.Context, _ fwk.CycleState, pod *corev1.Pod, nodeName string) *fwk.Status {
	assigned, ok := p.reservedFor(pod.UID)
	if !ok {
		return fwk.NewStatus(fwk.Skip)
	}
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
			Annotations: map[string]string{assign.Annotation: assigned},
		},
		Target: corev1.ObjectReference{Kind: "Node", Name: nodeName},
	}
	return fwk.AsStatus(p.bind(ctx, binding))
}

func (p *Plugin) bind(ctx context.Context, binding *corev1.Binding) error {
	calls := p.handle.APICacher()
	if calls == nil {
		return util.BindPod(ctx, p.handle.ClientSet(), binding)
	}
	done, err := calls.BindPod(binding)
	if err != nil {
		return err
	}
	return calls.WaitOnFinish(ctx, done)
}

// EventsToRegister returns the events that may make room for a pod.
func (p *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete}, QueueingHintFn: p.afterDelete},
		{Event: fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Update}, QueueingHintFn: p.afterUpdate},
		{Event: fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: fwk.Update}, QueueingHintFn: p.afterUpdate},
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeAnnotation | fwk.UpdateNodeAllocatable | fwk.UpdateNodeLabel}, QueueingHintFn: p.afterNode},
	}, nil
}

// afterDelete wakes a pod if another pod has released GPUs.
func (p *Plugin) afterDelete(_ klog.Logger, _ *corev1.Pod, old, _ any) (fwk.QueueingHint, error) {
	pod, _, err := util.As[*corev1.Pod](old, nil)
	if err != nil {
		return fwk.Queue, err
	}
	if len(request.Used([]*corev1.Pod{pod}, p.nodes.Config.Dialects)) > 0 {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

// afterUpdate wakes a pod after a change of an annotation that assigns GPUs, restricts GPUs,
// changes a request, or reports a running container's size.
func (*Plugin) afterUpdate(_ klog.Logger, _ *corev1.Pod, old, changed any) (fwk.QueueingHint, error) {
	before, after, err := util.As[*corev1.Pod](old, changed)
	if err != nil {
		return fwk.Queue, err
	}
	reads := func(key string) bool {
		return key == assign.Annotation || key == resize.ReportAnnotation || request.Reads(key) || choice.Reads(key)
	}
	for _, pair := range [][2]map[string]string{{before.Annotations, after.Annotations}, {after.Annotations, before.Annotations}} {
		for key, value := range pair[0] {
			if other, has := pair[1][key]; reads(key) && (!has || other != value) {
				return fwk.Queue, nil
			}
		}
	}
	return fwk.QueueSkip, nil
}

// afterNode wakes a pod if a Node lists different GPUs than before, or has more of a resource that
// the pod requests. A move of the Node to another pool also wakes the pod.
func (p *Plugin) afterNode(_ klog.Logger, pod *corev1.Pod, old, changed any) (fwk.QueueingHint, error) {
	before, after, err := util.As[*corev1.Node](old, changed)
	if err != nil {
		return fwk.Queue, err
	}
	if after == nil {
		return fwk.QueueSkip, nil
	}
	if before == nil || before.Annotations[assign.GPUsAnnotation] != after.Annotations[assign.GPUsAnnotation] {
		return fwk.Queue, nil
	}
	_, was := p.nodes.For(before.Labels)
	if _, is := p.nodes.For(after.Labels); was != is {
		return fwk.Queue, nil
	}
	for name := range request.Used([]*corev1.Pod{pod}, p.nodes.Config.Dialects) {
		had, has := before.Status.Allocatable[corev1.ResourceName(name)], after.Status.Allocatable[corev1.ResourceName(name)]
		if has.Cmp(had) > 0 {
			return fwk.Queue, nil
		}
	}
	return fwk.QueueSkip, nil
}

// SignPod adds a pod's shape to the pod's signature. For consecutive pods with equal signatures,
// the framework filters and scores only the node of the last pod again.
func (p *Plugin) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	asked, asks, err := p.requestOf(pod)
	if err != nil {
		return nil, fwk.NewStatus(fwk.Unschedulable, err.Error())
	}
	if !asks {
		return nil, nil
	}
	return []fwk.SignFragment{{Key: Name, Value: shapeOf(asked, pod, request.Used([]*corev1.Pod{pod}, p.nodes.Config.Dialects)).String()}}, nil
}
