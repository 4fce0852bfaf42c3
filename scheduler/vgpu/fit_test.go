// SPDX-License-Identifier: Apache-2.0

package vgpu

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
)

// filters are the plugins that filter by resources.
type filters interface {
	fwk.PreFilterPlugin
	fwk.FilterPlugin
}

// accepts reports whether all plugins accept the node for a pod.
func accepts(t *testing.T, pod *corev1.Pod, info fwk.NodeInfo, all ...filters) bool {
	t.Helper()
	state := framework.NewCycleState()
	for _, f := range all {
		if _, status := f.PreFilter(t.Context(), state, pod, nil); !status.IsSuccess() && !status.IsSkip() {
			return false
		}
	}
	for _, f := range all {
		if !f.Filter(t.Context(), state, pod, info).IsSuccess() {
			return false
		}
	}
	return true
}

// TestFitChangesNoVerdict checks that VGPU with Fit accepts the same pods as VGPU with
// NodeResourcesFit.
func TestFitChangesNoVerdict(t *testing.T) {
	handle, err := frameworkruntime.NewFramework(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := NewFit(t.Context(), nil, handle)
	if err != nil {
		t.Fatal(err)
	}
	inTree := nodeResourcesFit(t, handle)
	verdicts := map[bool]int{}
	for seed := range uint64(300) {
		w := newWorld(seed)
		w.cfg.Dialects.Native.Enabled = true
		p := newPlugin(&nominating{}, w.cfg)
		m := w.member("node-0")
		node := m.info.Node()
		for name, units := range map[corev1.ResourceName]int64{
			corev1.ResourceCPU: 4, corev1.ResourceMemory: 4, corev1.ResourcePods: w.Int64N(3), "example.com/other": 3, "nvidia.com/unknown": 1,
		} {
			node.Status.Allocatable[name] = *resource.NewQuantity(units, resource.DecimalSI)
		}
		// The Node's amounts may be smaller than the amounts of its GPUs.
		if w.IntN(3) == 0 {
			node.Status.Allocatable[corev1.ResourceName(w.cfg.Dialects.Native.Memory)] = *resource.NewQuantity(w.Int64N(20), resource.DecimalSI)
		}
		m.info.SetNode(node)
		pod := w.pod()
		for i := range pod.Spec.Containers {
			requests := corev1.ResourceList{}
			for name, units := range pod.Spec.Containers[i].Resources.Requests {
				requests[name] = units
			}
			for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, "example.com/other", "nvidia.com/unknown"} {
				if w.IntN(3) == 0 {
					requests[name] = *resource.NewQuantity(w.Int64N(4), resource.DecimalSI)
				}
			}
			pod.Spec.Containers[i].Resources.Requests = requests
		}
		before := pod.DeepCopy()
		got, want := accepts(t, pod, m.info, p, ours.(filters)), accepts(t, pod, m.info, p, inTree)
		if got != want {
			t.Errorf("seed %d: with Fit the pod is accepted: %t; with NodeResourcesFit: %t", seed, got, want)
		}
		if fmt.Sprint(before) != fmt.Sprint(pod) {
			t.Fatal("PreFilter has changed the pod")
		}
		verdicts[got]++
	}
	if verdicts[true] < 50 || verdicts[false] < 50 {
		t.Errorf("too few verdicts of a kind: %v", verdicts)
	}
}

func nodeResourcesFit(t *testing.T, handle fwk.Handle) filters {
	t.Helper()
	var external configv1.NodeResourcesFitArgs
	scheme.Scheme.Default(&external)
	var args schedulerconfig.NodeResourcesFitArgs
	if err := scheme.Scheme.Convert(&external, &args, nil); err != nil {
		t.Fatal(err)
	}
	plugin, err := plugins.NewInTreeRegistry()[names.NodeResourcesFit](t.Context(), &args, handle)
	if err != nil {
		t.Fatal(err)
	}
	return plugin.(filters)
}

func TestFitReadsTheArgumentsOfBoth(t *testing.T) {
	handle, err := frameworkruntime.NewFramework(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	raw := func(text string) runtime.Object {
		return &runtime.Unknown{Raw: []byte(text), ContentType: runtime.ContentTypeJSON}
	}
	for text, works := range map[string]bool{
		`{"scoringStrategy":{"type":"MostAllocated","resources":[{"name":"cpu","weight":1}]}}`: true,
		`{"scoringStrategy":{"type":"Nonsense","resources":[{"name":"cpu","weight":1}]}}`:      false,
		`{"configFile":"/does/not/exist.toml"}`:                                                false,
		`{`:                                                                                    false,
	} {
		if _, err := NewFit(t.Context(), raw(text), handle); (err == nil) != works {
			t.Errorf("%s: error %v, want none: %t", text, err, works)
		}
	}
}
