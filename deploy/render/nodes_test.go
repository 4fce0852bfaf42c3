// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// podSpecs returns the specs of the rendered pods, by the name of their DaemonSet, Deployment or Job.
func podSpecs(t *testing.T, args ...string) map[string]*corev1.PodSpec {
	t.Helper()
	specs := map[string]*corev1.PodSpec{}
	for _, object := range decode(t, template(t, "nri-vgpu-system", args...)) {
		switch o := object.(type) {
		case *appsv1.DaemonSet:
			specs[o.Name] = &o.Spec.Template.Spec
		case *appsv1.Deployment:
			specs[o.Name] = &o.Spec.Template.Spec
		case *batchv1.Job:
			specs[o.Name] = &o.Spec.Template.Spec
		}
	}
	return specs
}

// TestNodesOfThePods checks, by kube-scheduler's function, which nodes the values select. The
// view, the scheduler and the cleanup's Jobs need no GPU, and a node with GPUs may be absent.
func TestNodesOfThePods(t *testing.T) {
	nodes := map[string]map[string]string{
		"vendor":   {"feature.node.kubernetes.io/pci-10de.present": "true"},
		"display":  {"feature.node.kubernetes.io/pci-0300_10de.present": "true"},
		"3d":       {"feature.node.kubernetes.io/pci-0302_10de.present": "true"},
		"operator": {"nvidia.com/gpu.present": "true"},
		"labelled": {"nri-vgpu.io/gpu": "true"},
		"excluded": {"nri-vgpu.io/gpu": "false"},
		"chosen":   {"pool": "a"},
		"plain":    {},
		"arm64":    {"nri-vgpu.io/gpu": "true", "kubernetes.io/arch": "arm64"},
		"s390x":    {"nri-vgpu.io/gpu": "true", "kubernetes.io/arch": "s390x"},
	}
	all := []string{"3d", "chosen", "display", "excluded", "labelled", "operator", "plain", "vendor"}
	terms := `{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"pool","operator":"In","values":["a"]}]}]}}`
	for name, test := range map[string]struct {
		args            []string
		selected, tasks []string
	}{
		"default":           {nil, []string{"3d", "display", "labelled", "operator", "vendor"}, all},
		"one label":         {[]string{"--set", `gpuNodeLabels={nvidia.com/gpu.present}`}, []string{"operator"}, all},
		"one architecture":  {[]string{"--set", "architectures={arm64}"}, []string{"arm64"}, []string{"arm64"}},
		"every node":        {[]string{"--set-json", "gpuNodeLabels=[]"}, all, all},
		"a selector":        {[]string{"--set", "nodeSelector.pool=a"}, []string{"chosen"}, []string{"chosen"}},
		"an affinity":       {[]string{"--set-json", "affinity.nodeAffinity=" + terms}, []string{"chosen"}, []string{"chosen"}},
		"an empty affinity": {[]string{"--set-json", "affinity.nodeAffinity={}"}, []string{"3d", "display", "labelled", "operator", "vendor"}, all},
		"an affinity of pods": {
			[]string{"--set-json", `affinity.podAntiAffinity={"preferredDuringSchedulingIgnoredDuringExecution":[]}`},
			[]string{"3d", "display", "labelled", "operator", "vendor"}, all,
		},
		"view and scheduler": {
			[]string{"--set", "view.enabled=true,scheduler.enabled=true,config.scheduling.mode=scheduler", "--kube-version", "v1.37.0"},
			[]string{"3d", "display", "labelled", "operator", "vendor"}, all,
		},
	} {
		t.Run(name, func(t *testing.T) {
			for workload, spec := range podSpecs(t, test.args...) {
				var selected []string
				for node, labels := range nodes {
					object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{
						"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
					}}}
					for key, value := range labels {
						object.Labels[key] = value
					}
					match, err := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: *spec}).Match(object)
					if err != nil {
						t.Fatal(err)
					}
					if match {
						selected = append(selected, node)
					}
				}
				slices.Sort(selected)
				want := test.selected
				if strings.HasPrefix(workload, "nri-vgpu-cleanup-") || workload == "nri-vgpu-view" || workload == "nri-vgpu-scheduler" {
					want = test.tasks
				}
				if diff := cmp.Diff(want, selected); diff != "" {
					t.Errorf("nodes of %s (-want +got):\n%s", workload, diff)
				}
			}
		})
	}
}

// TestNames checks that the overrides change every name of an object but the documented names.
func TestNames(t *testing.T) {
	fixed := regexp.MustCompile("^nri-vgpu-(metrics-reader|view.*)$")
	for name, test := range map[string]struct{ base, label, value string }{
		"name": {"gpus", "gpus", "nameOverride"}, "full name": {"gpus", "nri-vgpu", "fullnameOverride"},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"--values", "testdata/operator.yaml", "--set", test.value + "=gpus", "--kube-version", "v1.37.0",
				"--set", "config.metrics.authentication=kubernetes", "--set", "networkPolicy.enabled=true", "--set", "openshift.scc=privileged"}
			rendered := template(t, "nri-vgpu-system", args...) + "\n---\n" +
				template(t, "nri-vgpu-system", append(args, "--set", "config.scheduling.mode=fit", "--set", "scheduler.enabled=false")...)
			for _, object := range decode(t, rendered) {
				meta := object.(metav1.Object)
				settings, ok := object.(*corev1.ConfigMap)
				isConfig := ok && settings.Name == "nri-vgpu"
				if !strings.HasPrefix(meta.GetName(), test.base) && !fixed.MatchString(meta.GetName()) && !isConfig {
					t.Errorf("%T is named %s", object, meta.GetName())
				}
				if label := meta.GetLabels()["app.kubernetes.io/name"]; label != "" && !strings.HasPrefix(label, test.label) && label != "extended-resource-patcher" && label != "nri-vgpu-view" {
					t.Errorf("%T %s has the label %s", object, meta.GetName(), label)
				}
				if meta.GetLabels()["app.kubernetes.io/instance"] != "nri-vgpu" {
					t.Errorf("%T %s has no label of its release", object, meta.GetName())
				}
			}
		})
	}
}

// TestPodsNameTheirRelease checks the recommended labels of all pods.
func TestPodsNameTheirRelease(t *testing.T) {
	want := map[string]string{"nri-vgpu": "agent", "extended-resource-patcher": "patcher", "nri-vgpu-cleanup": "cleanup"}
	got := map[string]string{}
	for _, object := range decode(t, template(t, "nri-vgpu-system")) {
		if set, ok := object.(*appsv1.DaemonSet); ok {
			labels := set.Spec.Template.Labels
			got[labels["app.kubernetes.io/name"]] = labels["app.kubernetes.io/component"]
			if labels["app.kubernetes.io/instance"] != "nri-vgpu" || labels["app.kubernetes.io/part-of"] != "nri-vgpu" {
				t.Errorf("the pods of %s have the labels %v", set.Name, labels)
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
