// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// rulesIn returns the content of the chart's PrometheusRules, by name.
func rulesIn(t *testing.T, rendered string) map[string]any {
	t.Helper()
	found := map[string]any{}
	for document := range strings.SplitSeq(rendered, "\n---\n") {
		var rule struct {
			Kind     string
			Metadata struct{ Name string }
			Spec     any
		}
		if err := yaml.Unmarshal([]byte(document), &rule); err != nil {
			t.Fatal(err)
		}
		if rule.Kind == "PrometheusRule" {
			found[rule.Metadata.Name] = rule.Spec
		}
	}
	return found
}

// TestRules checks that the chart contains the rules unchanged, each file by its value.
func TestRules(t *testing.T) {
	for value, want := range map[string]struct{ name, file string }{
		"enabled": {"nri-vgpu", "alerts.yaml"},
		"dcgm":    {"nri-vgpu-dcgm", "dcgm.yaml"},
	} {
		content, err := os.ReadFile(filepath.Join("../prometheus", want.file))
		if err != nil {
			t.Fatal(err)
		}
		var spec any
		if err := yaml.Unmarshal(content, &spec); err != nil {
			t.Fatal(err)
		}
		got := rulesIn(t, template(t, "nri-vgpu-system", "--set", "prometheus.rules."+value+"=true"))
		if diff := cmp.Diff(map[string]any{want.name: spec}, got); diff != "" {
			t.Errorf("rules with %s (-file +chart):\n%s", value, diff)
		}
	}
}

// TestDashboards checks that the chart contains the dashboards unchanged.
func TestDashboards(t *testing.T) {
	rendered := template(t, "nri-vgpu-system", "--set", "grafana.dashboards.enabled=true")
	found := map[string]string{}
	for _, object := range decode(t, rendered) {
		if m, ok := object.(*corev1.ConfigMap); ok && m.Labels["grafana_dashboard"] == "1" {
			maps.Copy(found, m.Data)
		}
	}
	files, err := filepath.Glob("../grafana/*.json")
	if err != nil || len(files) == 0 || len(files) != len(found) {
		t.Errorf("the chart has %d dashboards, of %d, %v", len(found), len(files), err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if found[filepath.Base(file)] != string(content) {
			t.Errorf("the chart has another %s", file)
		}
	}
}

// TestMetricsAuthentication checks that agent and patcher may create reviews with
// metrics.authentication, and that Prometheus sends its token. Without the value, the chart
// contains neither object.
func TestMetricsAuthentication(t *testing.T) {
	const reviews = "name: system:auth-delegator"
	plain := template(t, "nri-vgpu-system", "--set", "prometheus.serviceMonitor.enabled=true")
	if strings.Contains(plain, reviews) || strings.Contains(plain, "bearerTokenFile") {
		t.Error("rights for reviews exist without authentication")
	}
	rendered := template(t, "nri-vgpu-system", "--set", "config.metrics.authentication=kubernetes",
		"--set", "prometheus.serviceMonitor.enabled=true", "--set", "prometheus.annotations=true", "--set", "prometheus.certificateSecret=tls")
	decode(t, rendered)
	for want, times := range map[string]int{
		reviews: 1, "name: nri-vgpu-metrics-reader": 1, "bearerTokenFile: ": 1, "scheme: https": 3,
		"secret: {secretName: tls}": 2, "--metrics-certificate-dir=/etc/nri-vgpu-metrics": 2,
	} {
		if n := strings.Count(rendered, want); n != times {
			t.Errorf("%q is there %d times, want %d", want, n, times)
		}
	}
	file, err := os.ReadFile("../metrics-authentication.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var want, got []runtime.Object
	for _, object := range decode(t, string(file)) {
		want = append(want, unlabelled(object))
	}
	for _, object := range decode(t, rendered) {
		if name := object.(metav1.Object).GetName(); name == "nri-vgpu-reviews" || name == "nri-vgpu-metrics-reader" {
			got = append(got, unlabelled(object))
		}
	}
	slices.SortFunc(want, byName)
	slices.SortFunc(got, byName)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-metrics-authentication.yaml +chart):\n%s", diff)
	}
}

// podMonitor is the part of a PodMonitor that the chart writes.
type podMonitor struct {
	Kind     string
	Metadata struct {
		Name   string
		Labels map[string]string
	}
	Spec struct {
		Selector            metav1.LabelSelector
		PodMetricsEndpoints []struct {
			Port, Interval, Scheme         string
			HonorLabels                    bool
			Authorization                  struct{ Credentials struct{ Name, Key string } }
			TLSConfig                      struct{ InsecureSkipVerify bool }
			Relabelings, MetricRelabelings []map[string]any
		}
	}
}

// podMonitors renders the chart, and returns the PodMonitors and the pod templates of the chart.
func podMonitors(t *testing.T, args ...string) (monitors []podMonitor, pods []corev1.PodTemplateSpec) {
	t.Helper()
	rendered := template(t, "nri-vgpu-system", append(args, "--set", "prometheus.podMonitor.enabled=true")...)
	for document := range strings.SplitSeq(rendered, "\n---\n") {
		var monitor podMonitor
		if err := yaml.Unmarshal([]byte(document), &monitor); err != nil {
			t.Fatal(err)
		}
		if monitor.Kind == "PodMonitor" {
			monitors = append(monitors, monitor)
		}
	}
	for _, object := range decode(t, rendered) {
		switch set := object.(type) {
		case *appsv1.DaemonSet:
			pods = append(pods, set.Spec.Template)
		case *appsv1.Deployment:
			pods = append(pods, set.Spec.Template)
		}
	}
	return monitors, pods
}

// TestPodMonitor checks that exactly one PodMonitor selects each pod with metrics, at a port that
// the pod has. The PodMonitor must contain the other values.
func TestPodMonitor(t *testing.T) {
	monitors, pods := podMonitors(t, "--set", "scheduler.enabled=true", "--set", "config.scheduling.mode=scheduler",
		"--set", "view.enabled=true", "--set", "prometheus.podMonitor.labels.release=prometheus",
		"--set", "prometheus.podMonitor.interval=7s",
		"--set", "prometheus.podMonitor.relabelings[0].targetLabel=node", "--set", "prometheus.podMonitor.metricRelabelings[0].action=drop",
		"--set", "prometheus.podMonitor.authorization.credentials.name=token", "--set", "prometheus.podMonitor.authorization.credentials.key=t")
	selected := map[string]int{}
	for _, m := range monitors {
		endpoint := m.Spec.PodMetricsEndpoints[0]
		if m.Metadata.Labels["release"] != "prometheus" || endpoint.Interval != "7s" || !endpoint.HonorLabels ||
			endpoint.Relabelings[0]["targetLabel"] != "node" || endpoint.MetricRelabelings[0]["action"] != "drop" {
			t.Errorf("%s: %+v", m.Metadata.Name, m)
		}
		if secret := m.Metadata.Name == "nri-vgpu-scheduler"; secret != (endpoint.Authorization.Credentials.Name == "token") ||
			secret != (endpoint.Scheme == "https") || secret != endpoint.TLSConfig.InsecureSkipVerify {
			t.Errorf("%s: endpoint %+v", m.Metadata.Name, endpoint)
		}
		selector, err := metav1.LabelSelectorAsSelector(&m.Spec.Selector)
		if err != nil {
			t.Fatal(err)
		}
		for _, pod := range pods {
			if selector.Matches(labels.Set(pod.Labels)) && hasPort(pod, endpoint.Port) {
				selected[pod.Labels["app.kubernetes.io/name"]]++
			}
		}
	}
	want := map[string]int{"nri-vgpu": 1, "extended-resource-patcher": 1, "nri-vgpu-scheduler": 1}
	if diff := cmp.Diff(want, selected); diff != "" {
		t.Errorf("pods by monitors (-want +got):\n%s", diff)
	}
}

func hasPort(pod corev1.PodTemplateSpec, name string) bool {
	return slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == name })
	})
}

// TestPodMonitorSendsTheToken checks that the endpoints use TLS and the Secret if metrics need a
// token, and neither otherwise.
func TestPodMonitorSendsTheToken(t *testing.T) {
	for authentication, scheme := range map[string]string{"none": "", "kubernetes": "https"} {
		monitors, _ := podMonitors(t, "--set", "config.metrics.authentication="+authentication,
			"--set", "prometheus.podMonitor.authorization.credentials.name=token", "--set", "prometheus.podMonitor.tlsConfig.insecureSkipVerify=true")
		if len(monitors) != 1 || monitors[0].Spec.PodMetricsEndpoints[0].Scheme != scheme ||
			(monitors[0].Spec.PodMetricsEndpoints[0].Authorization.Credentials.Name == "token") != (scheme != "") {
			t.Errorf("authentication %s: %+v", authentication, monitors)
		}
	}
}
