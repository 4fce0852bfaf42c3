// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// arrival is a value that differs from the default, and a text that the rendered chart contains only
// with the value. The prefix "!" marks a text that the chart contains only without the value.
type arrival struct{ value, json, text string }

// arrivals are values that can be set together, beside the values in base.
var arrivals = []struct {
	base   string
	values []arrival
}{
	{
		base: `{
			"config": {"scheduling": {"mode": "scheduler"}, "metrics": {"authentication": "kubernetes"}},
			"scheduler": {"enabled": true}, "view": {"enabled": true}, "networkPolicy": {"enabled": true},
			"prometheus": {"serviceMonitor": {"enabled": true}, "rules": {"enabled": true}}, "grafana": {"dashboards": {"enabled": true}}
		}`,
		values: []arrival{
			{"nameOverride", `"gpus"`, "app.kubernetes.io/name: gpus\n"},
			{"image.repository", `"example.org/a"`, "example.org/a:"},
			{"image.tag", `"7.7.7"`, ":7.7.7"},
			{"image.pullPolicy", `"Always"`, "imagePullPolicy: Always"},
			{"imagePullSecrets", `[{"name": "pull-secret"}]`, "pull-secret"},
			{"nodeSelector", `{"node-selector": "x"}`, "node-selector: x"},
			{"tolerations", `[{"key": "tolerated"}]`, "key: tolerated"},
			{"priorityClassName", `"own-priority"`, "priorityClassName: own-priority"},
			{"maxUnavailable", `"17%"`, "maxUnavailable: 17%"},
			{"podAnnotations", `{"own": "annotation-of-pods"}`, "annotation-of-pods"},
			{"podLabels", `{"own": "label-of-pods"}`, "label-of-pods"},
			{"seLinuxOptions.level", `"s0:c7"`, "level: s0:c7"},
			{"seLinuxOptions.role", `"own_r"`, "role: own_r"},
			{"seLinuxOptions.type", `"own_t"`, "type: own_t"},
			{"seLinuxOptions.user", `"own_u"`, "user: own_u"},
			{"openshift.scc", `"own-scc"`, "own-scc"},
			{"agent.resources", `{"requests": {"cpu": "51m"}}`, "cpu: 51m"},
			{"agent.env", `[{"name": "OWN", "value": "variable"}]`, "value: variable"},
			{"patcher.resources", `{"requests": {"cpu": "12m"}}`, "cpu: 12m"},
			{"patcher.staleAfter", `"31s"`, "--stale-after=31s"},
			{"scheduler.image.repository", `"example.org/s"`, "example.org/s:"},
			{"scheduler.image.tag", `"8.8.8"`, ":8.8.8"},
			{"scheduler.replicas", `5`, "replicas: 5"},
			{"scheduler.claimPods", `false`, "!kind: MutatingAdmissionPolicy\n"},
			{"scheduler.policy", `"spread"`, "policy: spread"},
			{"scheduler.weight", `9`, "weight: 9"},
			{"scheduler.nodeSelector", `{"scheduler-selector": "x"}`, "scheduler-selector: x"},
			{"scheduler.tolerations", `[{"key": "by-scheduler"}]`, "key: by-scheduler"},
			{"scheduler.resources", `{"requests": {"cpu": "101m"}}`, "cpu: 101m"},
			{"scheduler.goMemoryLimit", `"421MiB"`, "421MiB"},
			{"prometheus.annotations", `true`, "prometheus.io/scrape"},
			{"prometheus.certificateSecret", `"metrics-tls"`, "metrics-tls"},
			{"prometheus.serviceMonitor.interval", `"16s"`, "interval: 16s"},
			{"prometheus.serviceMonitor.labels", `{"own": "label-of-monitor"}`, "label-of-monitor"},
			{"prometheus.serviceMonitor.relabelings", `[{"targetLabel": "relabelled"}]`, "targetLabel: relabelled"},
			{"prometheus.serviceMonitor.metricRelabelings", `[{"targetLabel": "metric"}]`, "targetLabel: metric"},
			{"prometheus.serviceMonitor.tlsConfig", `{"serverName": "own.example"}`, "serverName: own.example"},
			{"prometheus.rules.labels", `{"own": "label-of-rules"}`, "label-of-rules"},
			{"networkPolicy.metricsFrom", `[{"podSelector": {"matchLabels": {"own": "reader"}}}]`, "own: reader"},
			{"networkPolicy.apiServerPorts", `[6444]`, "6444"},
			{"grafana.dashboards.labels", `{"own": "label-of-dashboards"}`, "label-of-dashboards"},
			{"grafana.dashboards.annotations", `{"own": "annotation-of-dashboards"}`, "annotation-of-dashboards"},
			{"view.agentPort", `9399`, "9399"},
			{"view.certificateSecret", `"view-tls"`, "view-tls"},
			{"view.nodeSelector", `{"view-selector": "x"}`, "view-selector: x"},
			{"view.tolerations", `[{"key": "by-view"}]`, "key: by-view"},
			{"view.resources", `{"requests": {"cpu": "13m"}}`, "cpu: 13m"},
			{"cleanup.timeout", `"6m"`, "--timeout=6m"},
		},
	},
	{
		base: `{}`,
		values: []arrival{
			{"fullnameOverride", `"own-name"`, "name: own-name\n"},
			{"image.digest", `"sha256:` + strings.Repeat("a", 64) + `"`, "@sha256:" + strings.Repeat("a", 64)},
			{"driver.root", `"/run/nvidia/driver"`, "--driver-root=/host/run/nvidia/driver"},
			{"architectures", `["arm64"]`, `values: ["arm64"]`},
			{"gpuNodeLabels", `["own-label"]`, "own-label"},
			{"configFile", `"[log]\nlevel = \"debug\"\n"`, `level = "debug"`},
			{"view.enabled", `true`, "name: nri-vgpu-view\n"},
			{"networkPolicy.enabled", `true`, "kind: NetworkPolicy"},
			{"prometheus.serviceMonitor.enabled", `true`, "kind: ServiceMonitor"},
			{"prometheus.rules.enabled", `true`, "alert: VGPUAgentAway"},
			{"prometheus.rules.dcgm", `true`, "record: container_gpu:vgpu:info"},
			{"grafana.dashboards.enabled", `true`, "nri-vgpu / Workload"},
			{"cleanup.enabled", `false`, "!helm.sh/hook: pre-delete"},
		},
	},
	{
		base: `{"config": {"scheduling": {"mode": "scheduler"}}}`,
		values: []arrival{
			{"scheduler.enabled", `true`, "name: nri-vgpu-scheduler\n"},
			{"scheduler.image.digest", `"sha256:` + strings.Repeat("b", 64) + `"`, "@sha256:" + strings.Repeat("b", 64)},
			{"driver.runtimeClassName", `"nvidia"`, "runtimeClassName: nvidia"},
			{"affinity", `{"podAffinity": {"own": "affinity"}}`, "own: affinity"},
			{"prometheus.podMonitor.enabled", `true`, "kind: PodMonitor"},
			{"prometheus.podMonitor.interval", `"18s"`, "interval: 18s"},
			{"prometheus.podMonitor.labels", `{"own": "label-of-pod-monitor"}`, "label-of-pod-monitor"},
			{"prometheus.podMonitor.relabelings", `[{"targetLabel": "relabelled"}]`, "targetLabel: relabelled"},
			{"prometheus.podMonitor.metricRelabelings", `[{"targetLabel": "metric"}]`, "targetLabel: metric"},
			{"prometheus.podMonitor.authorization", `{"credentials": {"name": "token", "key": "own-key"}}`, "key: own-key"},
			{"prometheus.podMonitor.tlsConfig", `{"serverName": "own.example"}`, "serverName: own.example"},
		},
	},
	{base: `{}`, values: []arrival{{"manifest", `"install"`, "!helm.sh/chart"}}},
}

// TestEachValueArrives checks that each value of the chart has an effect. The tests of the
// configuration check the value "config", and "global" belongs to helm.
func TestEachValueArrives(t *testing.T) {
	missing := chartValues(t)
	delete(missing, "global")
	for _, group := range arrivals {
		plain := withValues(t, group.base, nil)
		set := withValues(t, group.base, group.values)
		for _, a := range group.values {
			delete(missing, a.value)
			text, without := strings.CutPrefix(a.text, "!")
			if before, after := strings.Contains(plain, text), strings.Contains(set, text); before != without || after == without {
				t.Errorf("%s=%s: the chart has %q by default: %v; with the value: %v", a.value, a.json, text, before, after)
			}
		}
	}
	for value := range missing {
		t.Errorf("no case sets %s", value)
	}
}

// withValues renders the chart with values in a file and further values.
func withValues(t *testing.T, file string, values []arrival) string {
	t.Helper()
	path := t.TempDir() + "/values.json"
	if err := os.WriteFile(path, []byte(file), 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{"--values", path}
	for _, a := range values {
		args = append(args, "--set-json", a.value+"="+a.json)
	}
	return template(t, "nri-vgpu-system", args...)
}

// chartValues returns the chart's values, without the configuration.
func chartValues(t *testing.T) map[string]bool {
	t.Helper()
	var whole schema
	content, err := os.ReadFile("../chart/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(content, &whole); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	var collect func(path string, s *schema)
	collect = func(path string, s *schema) {
		if len(s.Properties) == 0 {
			found[path] = true
		}
		for name, inner := range s.Properties {
			collect(strings.TrimPrefix(path+"."+name, "."), inner)
		}
	}
	delete(whole.Properties, "config")
	collect("", &whole)
	return found
}
