// SPDX-License-Identifier: Apache-2.0

package vgpu

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
)

// PreemptionName is the name of the plugin Preemption in KubeSchedulerConfiguration.
const PreemptionName = "VGPUPreemption"

// Preemption is Kubernetes' plugin DefaultPreemption with fewer victims. DefaultPreemption spares
// the older of two pods with equal priorities, so it may evict two small pods where one large pod
// would suffice. Preemption searches for a smaller set of victims, and considers no pod whose
// priority is higher than the highest priority of DefaultPreemption's victims. Preemption replaces
// DefaultPreemption in a profile that has VGPU.
type Preemption struct {
	*defaultpreemption.DefaultPreemption
	// patience bounds the time of the search for fewer victims on a node.
	patience time.Duration
}

// searchTime bounds the search on a node. During the search, the scheduler schedules no other pod.
// The scheduler searches up to a hundred nodes for a pod, several nodes at a time.
const searchTime = 5 * time.Millisecond

var (
	_ fwk.PostFilterPlugin  = (*Preemption)(nil)
	_ fwk.PreEnqueuePlugin  = (*Preemption)(nil)
	_ fwk.EnqueueExtensions = (*Preemption)(nil)
	_ preemption.Interface  = (*Preemption)(nil)
)

// NewPreemption returns the plugin Preemption.
func NewPreemption(ctx context.Context, raw runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	var external configv1.DefaultPreemptionArgs
	if err := frameworkruntime.DecodeInto(raw, &external); err != nil {
		return nil, fmt.Errorf("read the arguments of plugin %s: %w", PreemptionName, err)
	}
	scheme.Scheme.Default(&external)
	var args config.DefaultPreemptionArgs
	if err := scheme.Scheme.Convert(&external, &args, nil); err != nil {
		return nil, fmt.Errorf("convert the arguments of plugin %s: %w", PreemptionName, err)
	}
	inTree, err := defaultpreemption.New(ctx, &args, handle, feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
	if err != nil {
		return nil, err
	}
	p := &Preemption{inTree, searchTime}
	inTree.Evaluator = preemption.NewEvaluator(PreemptionName, handle, p, inTree.Executor)
	return p, nil
}

// Name returns the plugin's name.
func (*Preemption) Name() string { return PreemptionName }

// SelectVictimsOnNode returns the victims whose eviction makes room for a pod on a node.
func (p *Preemption) SelectVictimsOnNode(ctx context.Context, state fwk.CycleState, preemptor *corev1.Pod, info fwk.NodeInfo,
	possible []*preemption.DomainVictim, pdbs []*policyv1.PodDisruptionBudget) ([]*corev1.Pod, int, *fwk.Status) {
	asked, asks := askingOf(state)
	if !asks {
		return p.DefaultPreemption.SelectVictimsOnNode(ctx, state, preemptor, info, possible, pdbs)
	}
	// DefaultPreemption modifies state and info, so the search works on copies.
	s := search{evaluator: p.Evaluator, state: state.Clone(), preemptor: preemptor, info: info.Snapshot()}
	victims, violations, status := p.DefaultPreemption.SelectVictimsOnNode(ctx, state, preemptor, info, possible, pdbs)
	if !status.IsSuccess() || violations > 0 {
		return victims, violations, status
	}
	_, harmless := preemption.FilterVictimsWithPDBViolation(possible, pdbs)
	most := highest(victims) // lower than the preemptor's priority
	for _, v := range harmless {
		if !v.IsGroup() && v.Priority() <= most && p.IsEligiblePod(s.info, v, preemptor) {
			s.possible = append(s.possible, v.Pods()[0])
		}
	}
	s.until = time.Now().Add(p.patience)
	if fewer := s.fewer(ctx, asked, victims); fewer != nil {
		victims = fewer
	}
	return victims, violations, status
}

// highest returns the highest priority of pods.
func highest(pods []*corev1.Pod) int32 {
	most := int32(math.MinInt32)
	for _, pod := range pods {
		most = max(most, corev1helpers.PodPriority(pod))
	}
	return most
}

// search searches for the best victims on a node. A smaller set of victims is better, and among
// sets of equal size, a set with a smaller sum of priorities.
type search struct {
	evaluator *preemption.Evaluator
	state     fwk.CycleState
	preemptor *corev1.Pod
	info      fwk.NodeInfo
	possible  []fwk.PodInfo // pods of no higher priority than DefaultPreemption's victims

	until time.Time
}

// late reports whether the time for the search has passed.
func (s *search) late(ctx context.Context) bool { return ctx.Err() != nil || time.Now().After(s.until) }

// candidate is a set of victims with room for the pod on the node's GPUs.
type candidate struct {
	pods []fwk.PodInfo
	sum  int64 // sum of the priorities
}

// fewer returns better victims than DefaultPreemption's victims; nil if no better victims exist or
// the time for the search has passed.
func (s *search) fewer(ctx context.Context, asked *asking, victims []*corev1.Pod) []*corev1.Pod {
	v := asked.plugin.newView(s.info)
	pod, err := asked.plugin.here(asked, v, s.info)
	if err != nil {
		return nil
	}
	for size := 1; size <= len(victims); size++ {
		sets := s.sets(ctx, size, func(uids []string) bool { return v.Ledger.FitsWithout(pod, uids...) })
		slices.SortStableFunc(sets, func(a, b candidate) int { return cmp.Compare(a.sum, b.sum) })
		for _, set := range sets {
			if size == len(victims) && set.sum >= sumOf(victims) {
				return nil
			}
			if s.late(ctx) {
				return nil
			}
			if s.fits(ctx, set.pods) {
				return podsOf(set.pods)
			}
		}
		if s.late(ctx) {
			return nil
		}
	}
	return nil
}

// sets returns the sets of a size for which room reports that the node's GPUs have room without the
// pods of the set. The parameter of room contains the pods' UIDs.
func (s *search) sets(ctx context.Context, size int, room func(uids []string) bool) (found []candidate) {
	chosen, uids := make([]fwk.PodInfo, 0, size), make([]string, 0, size)
	var add func(from int)
	add = func(from int) {
		if len(chosen) == size {
			if room(uids) {
				found = append(found, candidate{slices.Clone(chosen), sumOf(podsOf(chosen))})
			}
			return
		}
		for i := from; i < len(s.possible) && !s.late(ctx); i++ {
			chosen, uids = append(chosen, s.possible[i]), append(uids, string(s.possible[i].GetPod().UID))
			add(i + 1)
			chosen, uids = chosen[:len(chosen)-1], uids[:len(uids)-1]
		}
	}
	add(0)
	return found
}

// fits reports whether all filters accept the node without these pods.
func (s *search) fits(ctx context.Context, without []fwk.PodInfo) bool {
	info, state := s.info.Snapshot(), s.state.Clone()
	for _, victim := range without {
		if err := info.RemovePod(klog.FromContext(ctx), victim.GetPod()); err != nil {
			return false
		}
		if !s.evaluator.Handler.RunPreFilterExtensionRemovePod(ctx, state, s.preemptor, victim, info).IsSuccess() {
			return false
		}
	}
	return s.evaluator.Handler.RunFilterPluginsWithNominatedPods(ctx, state, s.preemptor, info).IsSuccess()
}

// podsOf returns the pods, ordered by descending priority, as callers of SelectVictimsOnNode
// expect.
func podsOf(infos []fwk.PodInfo) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, info := range infos {
		pods = append(pods, info.GetPod())
	}
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Compare(corev1helpers.PodPriority(b), corev1helpers.PodPriority(a))
	})
	return pods
}

func sumOf(pods []*corev1.Pod) (sum int64) {
	for _, pod := range pods {
		sum += int64(corev1helpers.PodPriority(pod))
	}
	return sum
}
