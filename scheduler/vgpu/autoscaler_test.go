// SPDX-License-Identifier: Apache-2.0

package vgpu

import (
	"maps"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/interpodaffinity"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"

	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// The waiting pod of the tests requests 9 GiB of a GPU. The full node has 7 GiB free on each of two GPUs.
const (
	waitingMiB   = 9 << 10
	waitingShape = "1-9216-0-0"
)

// TestAutoscalersSimulation checks the verdicts of kube-scheduler's own filters about a waiting pod.
// The cluster autoscaler runs these filters, without VGPU. The autoscaler adds a node if the filters
// reject the full node, and accept the node that the autoscaler would add. A group with nodes gets a
// copy of a node, with its labels, its amounts and its pods of DaemonSets with their labels.
func TestAutoscalersSimulation(t *testing.T) {
	free := request.Rooms{1: {{MiB: 7 << 10, Percent: 43, Cores: 100}}}.Labels()
	free[request.FitLabel] = "true"
	held := maps.Clone(free)
	held[request.FitHeld+waitingShape] = "true"
	for name, tt := range map[string]struct {
		labels map[string]string // of the full node
		fit    bool              // whether the pod has the conditions of the mode fit
		// Whether the filters accept the full node, a copy of the full node, and the first node of a
		// group. The first node has no labels.
		full, copied, first bool
	}{
		"sums or scheduler":                 {nil, false, true, true, true},
		"fit, with other shapes":            {free, true, false, false, true},
		"fit, with a pod of the same shape": {held, true, false, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := waitingPod(tt.fit)
			agent := func(node string) *corev1.Pod {
				if tt.labels[request.FitHeld+waitingShape] == "" {
					return agentOn(node, nil)
				}
				return agentOn(node, map[string]string{request.FitFull + waitingShape: "true"})
			}
			for _, candidate := range []struct {
				node *corev1.Node
				pods []*corev1.Pod
				want bool
			}{
				{nodeOf("full", tt.labels), []*corev1.Pod{holder("full", "a"), holder("full", "b"), agent("full")}, tt.full},
				{nodeOf("copy", tt.labels), []*corev1.Pod{agent("copy")}, tt.copied},
				{nodeOf("first", nil), []*corev1.Pod{agentOn("first", nil)}, tt.first},
			} {
				if got := inTreeAccepts(t, pod, candidate.node, candidate.pods); got != candidate.want {
					t.Errorf("the filters accept the node %s: %t", candidate.node.Name, got)
				}
			}
		})
	}
}

// inTreeAccepts reports whether kube-scheduler's filters accept a node with pods for another pod.
func inTreeAccepts(t *testing.T, pod *corev1.Pod, node *corev1.Node, on []*corev1.Pod) bool {
	t.Helper()
	metrics.Register() // the filters count their goroutines
	client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "nri-vgpu-system"}})
	factory := informers.NewSharedInformerFactory(client, 0)
	snapshot := cache.NewSnapshot(on, []*corev1.Node{node})
	handle, err := frameworkruntime.NewFramework(t.Context(), nil, nil,
		frameworkruntime.WithSnapshotSharedLister(snapshot), frameworkruntime.WithInformerFactory(factory))
	if err != nil {
		t.Fatal(err)
	}
	affinity, err := plugins.NewInTreeRegistry()[names.NodeAffinity](t.Context(), &schedulerconfig.NodeAffinityArgs{}, handle)
	if err != nil {
		t.Fatal(err)
	}
	antiAffinity, err := interpodaffinity.New(t.Context(), &schedulerconfig.InterPodAffinityArgs{HardPodAffinityWeight: 1}, handle, feature.Features{})
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	info, err := snapshot.NodeInfos().Get(node.Name)
	if err != nil {
		t.Fatal(err)
	}
	infos, err := snapshot.NodeInfos().List()
	if err != nil {
		t.Fatal(err)
	}
	state := framework.NewCycleState()
	for _, f := range []filters{nodeResourcesFit(t, handle), affinity.(filters), antiAffinity.(filters)} {
		_, status := f.PreFilter(t.Context(), state, pod, infos)
		if status.IsSkip() {
			continue
		}
		if !status.IsSuccess() || !f.Filter(t.Context(), state, pod, info).IsSuccess() {
			return false
		}
	}
	return true
}

// nodeOf returns a Node with the capacity of two GPUs of 16 GiB.
func nodeOf(name string, labels map[string]string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	maps.Copy(node.Labels, labels)
	node.Status.Allocatable = corev1.ResourceList{
		"pods": resource.MustParse("110"), "nri-vgpu.io/vgpu-memory": resource.MustParse("32768"), request.FitTurn: resource.MustParse("3"),
	}
	return node
}

// requesting returns a pod that requests MiB of a GPU and a turn.
func requesting(name string, mib int) *corev1.Pod {
	amounts := corev1.ResourceList{"nri-vgpu.io/vgpu-memory": resource.MustParse(strconv.Itoa(mib)), request.FitTurn: resource.MustParse("1")}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Limits: amounts, Requests: amounts}}}},
	}
}

func holder(node, name string) *corev1.Pod {
	pod := requesting(name, waitingMiB)
	pod.Spec.NodeName = node
	return pod
}

// agentOn returns the agent's pod on a node.
func agentOn(node string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "nri-vgpu-system", Name: "agent", UID: "agent", Labels: labels},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "agent"}}},
	}
}

// waitingPod returns a pod that waits for a GPU. With conditions, the pod has the conditions that the
// policy of the mode fit adds.
func waitingPod(conditions bool) *corev1.Pod {
	pod := requesting("waiting", waitingMiB)
	if !conditions {
		return pod
	}
	exists := func(key string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpExists}}}
	}
	terms := []corev1.NodeSelectorTerm{exists(request.FitHeld + waitingShape), {
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: request.FitLabel, Operator: corev1.NodeSelectorOpDoesNotExist}},
	}}
	for _, size := range request.FitSizes() {
		terms = append(terms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{
			Key: request.FitPrefix + "1" + size + "-memory", Operator: corev1.NodeSelectorOpGt, Values: []string{strconv.Itoa(waitingMiB - 1)},
		}}})
	}
	pod.Spec.Affinity = &corev1.Affinity{
		NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}},
		PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, Namespaces: []string{"nri-vgpu-system"},
			LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: request.FitFull + waitingShape, Operator: metav1.LabelSelectorOpExists},
			}},
		}}},
	}
	return pod
}
