// SPDX-License-Identifier: Apache-2.0

package vgpu

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/choice"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/resize"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

func podWith(limits corev1.ResourceList) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", Namespace: "default", UID: "uid"}}
	pod.Spec.Containers = []corev1.Container{{Name: "app", Resources: corev1.ResourceRequirements{Limits: limits, Requests: limits}}}
	return pod
}

func units(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.DecimalSI) }

func TestOnlyReleasedGPUsWakeAPod(t *testing.T) {
	p := newPlugin(&nominating{}, config.Default())
	memory := corev1.ResourceName(p.nodes.Config.Dialects.Native.Memory)
	waiting := podWith(corev1.ResourceList{memory: units(1)})
	for name, test := range map[string]struct {
		deleted *corev1.Pod
		want    fwk.QueueingHint
	}{
		"with GPUs":                 {podWith(corev1.ResourceList{memory: units(1)}), fwk.Queue},
		"without":                   {podWith(corev1.ResourceList{"cpu": units(1)}), fwk.QueueSkip},
		"with amounts of zero":      {podWith(corev1.ResourceList{memory: units(0)}), fwk.QueueSkip},
		"with an invalid request":   {podWith(corev1.ResourceList{memory: units(1 << 50)}), fwk.Queue}, // the amounts count in the sums
		"that requested whole GPUs": {podWith(corev1.ResourceList{corev1.ResourceName(p.nodes.Config.Dialects.Native.Number): units(1)}), fwk.Queue},
	} {
		if got, err := p.afterDelete(klog.Background(), waiting, test.deleted, nil); err != nil || got != test.want {
			t.Errorf("a deleted pod %s: got %v, %v, want %v", name, got, err, test.want)
		}
	}
	if _, err := p.afterDelete(klog.Background(), waiting, &corev1.Node{}, nil); err == nil {
		t.Error("an object of another type is no error")
	}
}

func TestOnlyMoreRoomWakesAPod(t *testing.T) {
	p := newPlugin(&nominating{}, config.Default())
	memory, cores := corev1.ResourceName(p.nodes.Config.Dialects.Native.Memory), corev1.ResourceName(p.nodes.Config.Dialects.Native.Cores)
	node := func(gpus string, memoryUnits, coresUnits int64) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", Annotations: map[string]string{assign.GPUsAnnotation: gpus}}}
		n.Status.Allocatable = corev1.ResourceList{memory: units(memoryUnits), cores: units(coresUnits)}
		return n
	}
	waiting := podWith(corev1.ResourceList{memory: units(1)})
	for name, test := range map[string]struct {
		before, after *corev1.Node
		want          fwk.QueueingHint
	}{
		"a new node":                        {nil, node("a", 1, 1), fwk.Queue},
		"a deleted node":                    {node("a", 1, 1), nil, fwk.QueueSkip},
		"other GPUs":                        {node("a", 1, 1), node("b", 1, 1), fwk.Queue},
		"more of the pod's resource":        {node("a", 1, 1), node("a", 2, 1), fwk.Queue},
		"more of a resource for other pods": {node("a", 1, 1), node("a", 1, 2), fwk.QueueSkip},
		"less of the pod's resource":        {node("a", 2, 1), node("a", 1, 1), fwk.QueueSkip},
		"nothing that counts":               {node("a", 1, 1), node("a", 1, 1), fwk.QueueSkip},
	} {
		var before, after any
		if test.before != nil {
			before = test.before
		}
		if test.after != nil {
			after = test.after
		}
		if got, err := p.afterNode(klog.Background(), waiting, before, after); err != nil || got != test.want {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, test.want)
		}
	}
}

func TestChangedAnnotationsWakeAPod(t *testing.T) {
	p := newPlugin(&nominating{}, config.Default())
	with := func(annotations map[string]string) *corev1.Pod {
		pod := podWith(nil)
		pod.Annotations = annotations
		return pod
	}
	for name, test := range map[string]struct {
		before, after map[string]string
		want          fwk.QueueingHint
	}{
		"nothing":                     {nil, nil, fwk.QueueSkip},
		"an annotation of others":     {nil, map[string]string{"example.com/a": "x"}, fwk.QueueSkip},
		"the same assignment":         {map[string]string{assign.Annotation: "x"}, map[string]string{assign.Annotation: "x", "a": "b"}, fwk.QueueSkip},
		"an announced assignment":     {nil, map[string]string{assign.Annotation: "x"}, fwk.Queue},
		"a corrected policy":          {map[string]string{request.PolicyAnnotation: "x"}, map[string]string{request.PolicyAnnotation: "share"}, fwk.Queue},
		"a reported size":             {map[string]string{resize.ReportAnnotation: "{}"}, nil, fwk.Queue},
		"a requested size":            {nil, map[string]string{resize.Annotation: "{}"}, fwk.QueueSkip},
		"a choice of GPUs, withdrawn": {map[string]string{choice.UseUUID: "x"}, nil, fwk.Queue},
	} {
		if got, err := p.afterUpdate(klog.Background(), podWith(nil), with(test.before), with(test.after)); err != nil || got != test.want {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, test.want)
		}
	}
}

// TestVerdictsAreOfTheAmounts checks that a verdict depends on the requested resources. Pods with
// equal shares may request different resources, and the plugin checks the sum of each resource.
func TestVerdictsAreOfTheAmounts(t *testing.T) {
	w := newWorld(1)
	w.cfg = config.Default()
	m := w.member("node")
	d := w.cfg.Dialects.Native
	node := m.info.Node()
	node.Status.Allocatable[corev1.ResourceName(d.Number)] = units(0)
	m.info.SetNode(node)
	p := newPlugin(&nominating{}, w.cfg)
	memory := podWith(corev1.ResourceList{corev1.ResourceName(d.Memory): units(1000)})
	both := podWith(corev1.ResourceList{corev1.ResourceName(d.Memory): units(1000), corev1.ResourceName(d.Number): units(1)})
	for range 2 {
		if v, err := p.verdictOn(p.newAsking(read(t, p, memory), memory), m.info); err != nil || !v.fits {
			t.Errorf("without the number: %+v, %v", v, err)
		}
		if v, err := p.verdictOn(p.newAsking(read(t, p, both), both), m.info); err != nil || v.short != d.Number {
			t.Errorf("with the number, of which the node has none: %+v, %v", v, err)
		}
	}
}
