// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubejson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/nri-vgpu/nri-vgpu/internal/version"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
)

var update = flag.Bool("update", false, "write the golden files of the chart")

const (
	root  = "../.."
	chart = "../chart"
)

// readChart opens the files that helm will read. go test caches a result if the files
// that the test itself opened have not changed.
var readChart = sync.OnceValue(func() error {
	return filepath.WalkDir(chart, func(path string, _ fs.DirEntry, err error) error {
		if info, statErr := os.Stat(path); err != nil || statErr != nil || info.IsDir() {
			return errors.Join(err, statErr)
		}
		_, err = os.ReadFile(path)
		return err
	})
})

// helm runs helm and returns its output.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	program, err := components.HelmProgram(t.Context(), root, os.Stderr)
	if err = errors.Join(err, readChart()); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", errors.New(err.Error() + ": " + stderr.String() + stdout.String())
	}
	return stdout.String(), nil
}

// template renders the chart for an installation in the namespace.
func template(t *testing.T, namespace string, args ...string) string {
	t.Helper()
	out, err := helm(t, append([]string{"template", "nri-vgpu", chart, "--namespace", namespace}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestRenderedFilesAreCurrent(t *testing.T) {
	program, err := components.HelmProgram(t.Context(), root, os.Stderr)
	if err = errors.Join(err, readChart()); err != nil {
		t.Fatal(err)
	}
	for _, file := range files() {
		want, err := file.make(t.Context(), program, root)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(root, file.name))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s is not current; run make chart (-want +file):\n%s", file.name, diff)
		}
	}
}

// namespaces are the namespaces of the golden files: the default, and another.
var namespaces = map[string]string{"default": "nri-vgpu-system", "operator": "nri-vgpu-system", "plain": "gpus"}

func TestGolden(t *testing.T) {
	for name, namespace := range namespaces {
		t.Run(name, func(t *testing.T) {
			values := filepath.Join("testdata", name+".yaml")
			if out, err := helm(t, "lint", "--strict", "--namespace", namespace, "--values", values, chart); err != nil {
				t.Errorf("helm lint: %v%s", err, out)
			}
			got := template(t, namespace, "--values", values)
			decode(t, got)
			golden := filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("the chart renders another text; for an intended change, run go test ./deploy/render -update (-golden +rendered):\n%s", diff)
			}
		})
	}
}

// decode decodes every object of Kubernetes' own kinds. decode fails on unknown and
// repeated fields.
func decode(t *testing.T, rendered string) []runtime.Object {
	t.Helper()
	decoder := kubejson.NewSerializerWithOptions(kubejson.DefaultMetaFactory, scheme.Scheme, scheme.Scheme,
		kubejson.SerializerOptions{Yaml: true, Strict: true})
	var objects []runtime.Object
	for r := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(rendered))); ; {
		document, err := r.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		object, _, err := decoder.Decode(document, nil, nil)
		switch {
		case bytes.Contains(document, []byte("apiVersion: monitoring.coreos.com/")):
		case err != nil:
			t.Errorf("%v in:\n%s", err, document)
		default:
			objects = append(objects, object)
		}
	}
}

// configured returns config.toml as the chart renders it.
func configured(t *testing.T, rendered string) string {
	t.Helper()
	return dataOf(t, rendered, "nri-vgpu", "config.toml")
}

// dataOf returns the data of a rendered ConfigMap.
func dataOf(t *testing.T, rendered, name, key string) string {
	t.Helper()
	for _, object := range decode(t, rendered) {
		if m, ok := object.(*corev1.ConfigMap); ok && m.Name == name {
			return m.Data[key]
		}
	}
	t.Fatalf("there is no ConfigMap %s", name)
	return ""
}

// TestBenchmarksHaveThePluginsOfTheChart checks that the benchmarks measure the scheduler with the
// plugins of the chart.
func TestBenchmarksHaveThePluginsOfTheChart(t *testing.T) {
	plugins := func(text []byte) any {
		var configuration struct {
			Profiles []struct{ Plugins map[string]any }
		}
		if err := yaml.Unmarshal(text, &configuration); err != nil {
			t.Fatal(err)
		}
		if len(configuration.Profiles) != 1 || len(configuration.Profiles[0].Plugins) == 0 {
			t.Fatalf("want one profile with plugins: %s", text)
		}
		return configuration.Profiles[0].Plugins
	}
	measured, err := os.ReadFile(filepath.Join(root, "scheduler/perf/testdata/scheduler.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	installed := dataOf(t, template(t, "nri-vgpu-system", "--values", "testdata/operator.yaml"), "nri-vgpu-scheduler", "scheduler.yaml")
	if diff := cmp.Diff(plugins([]byte(installed)), plugins(measured)); diff != "" {
		t.Errorf("(-chart +scheduler/perf):\n%s", diff)
	}
}

// TestEveryKeyIsAValue checks that every key with its default as a value results in this default.
func TestEveryKeyIsAValue(t *testing.T) {
	all, err := keys(root)
	if err != nil {
		t.Fatal(err)
	}
	tree := map[string]any{}
	for _, k := range all {
		value, err := inJSON(k.value)
		if err != nil {
			t.Fatal(err)
		}
		path := strings.Split(k.path, ".")
		table := tree
		for i, part := range path[:len(path)-1] {
			if document(strings.Join(path[:i+1], ".")+".x", "1")[:2] == "[[" {
				if table[part] == nil {
					table[part] = []any{map[string]any{}}
				}
				table = table[part].([]any)[0].(map[string]any)
				continue
			}
			if table[part] == nil {
				table[part] = map[string]any{}
			}
			table = table[part].(map[string]any)
		}
		table[path[len(path)-1]] = value
	}
	// The default has several mounts.
	var mounts []any
	for _, m := range config.Default().Injection.Direct.Mounts {
		mounts = append(mounts, map[string]any{"source": m.Source, "destination": m.Destination, "read_only": m.ReadOnly})
	}
	tree["injection"].(map[string]any)["direct"].(map[string]any)["mounts"] = mounts

	content, err := json.Marshal(map[string]any{"config": tree})
	if err != nil {
		t.Fatal(err)
	}
	values := filepath.Join(t.TempDir(), "values.json")
	if err := os.WriteFile(values, content, 0o600); err != nil {
		t.Fatal(err)
	}
	text := configured(t, template(t, "nri-vgpu-system", "--values", values))
	for _, k := range all {
		if name := k.path[strings.LastIndex(k.path, ".")+1:]; !strings.Contains(text, name+" = ") {
			t.Errorf("%s was lost", k.path)
		}
	}
	got, err := config.Parse([]byte(text))
	if err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	if diff := cmp.Diff(config.Default(), got); diff != "" {
		t.Errorf("(-default +values):\n%s", diff)
	}
}

func TestValuesArriveInTheConfiguration(t *testing.T) {
	want := config.Default()
	want.Node.SlotsPerGPU = 20
	want.Sharing.Method, want.Sharing.MPS.Root = config.ShareByMPS, "/run/nvidia/driver"
	want.Scheduling.Mode = config.ScheduleByPlugin
	want.Health.Taint, want.Health.IgnoredXIDs = config.TaintAll, []int{13, 31}
	want.Dialects.Alnair.Enabled = false
	want.Dialects.MetaGPU.DeviceSharing = []config.DeviceSharing{
		{ResourceName: "cnvrg.io/metagpu", SharesPerGPU: 100, UUIDs: []string{"*"}},
		{ResourceName: "cnvrg.io/small", SharesPerGPU: 10, UUIDs: []string{"GPU-1"}},
	}
	want.HTTP.Address = "0.0.0.0:9500"
	for _, namespace := range []string{"nri-vgpu-system", "elsewhere"} {
		text := configured(t, template(t, namespace, "--values", "testdata/operator.yaml"))
		got, err := config.Parse([]byte(text))
		if err != nil {
			t.Fatalf("%v in:\n%s", err, text)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("in %s (-want +got):\n%s", namespace, diff)
		}
	}
}

// TestPoolsArriveInTheConfiguration checks that the chart's values may contain pools.
func TestPoolsArriveInTheConfiguration(t *testing.T) {
	const pool = `{"name":"few","node_selector":"slots=few","node":{"slots_per_gpu":2,"gpus":{"exclude":["0"]}},"placement":{"policy":"spread"}}`
	text := configured(t, template(t, "nri-vgpu-system", "--set-json", "config.pool=["+pool+"]", "--set", "config.log.level=debug"))
	file, err := config.ParseFile([]byte(text))
	if err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	want := config.Default()
	want.Log.Level = "debug"
	if diff := cmp.Diff(want, file.Config); diff != "" {
		t.Error(diff)
	}
	want.Node.SlotsPerGPU, want.Node.GPUs.Exclude, want.Placement.Policy = 2, []string{"0"}, config.PlaceSpread
	if got, name := file.For(map[string]string{"slots": "few"}); name != "few" || cmp.Diff(want, got) != "" {
		t.Errorf("pool %q: %s", name, cmp.Diff(want, got))
	}
}

func TestWrongValuesAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"a key that is misspelt":       {[]string{"--set", "config.node.slots_per_gpus=3"}, "slots_per_gpus"},
		"a number out of range":        {[]string{"--set", "config.node.slots_per_gpu=1001"}, "maximum"},
		"a word that is not allowed":   {[]string{"--set", "config.sharing.method=mpx"}, "must be one of"},
		"a value that is misspelt":     {[]string{"--set", "image.tags=x"}, "tags"},
		"a table of no pool":           {[]string{"--set", "config.pool[0].name=a", "--set", "config.pool[0].paths.run_dir=/run/x"}, "paths"},
		"amounts of one pool":          {[]string{"--set", "config.pool[0].name=a", "--set", "config.pool[0].dialects.native.amounts=total"}, "amounts"},
		"two configurations":           {[]string{"--set", "config.log.level=info", "--set-file", "configFile=../../config.toml"}, "leave one of them out"},
		"a certificate for clear text": {[]string{"--set", "prometheus.certificateSecret=tls"}, "metrics.authentication"},
		"a root that is overridden":    {[]string{"--set", "config.driver.root=/run/nvidia/driver"}, "set driver.root instead"},
		"a name of no object":          {[]string{"--set", "nameOverride=GPU"}, "does not match pattern"},
		"a label of no node":           {[]string{"--set", "gpuNodeLabels={a=b}"}, "does not match pattern"},
		"a port of no API server":      {[]string{"--set", "networkPolicy.apiServerPorts={0}"}, "minimum"},
		"a relabeling of no list":      {[]string{"--set", "prometheus.serviceMonitor.relabelings=x"}, "array"},
		"two monitors":                 {[]string{"--set", "prometheus.podMonitor.enabled=true", "--set", "prometheus.serviceMonitor.enabled=true"}, "read each series twice"},
		"a monitor without a token":    {[]string{"--set", "prometheus.podMonitor.enabled=true", "--set", "config.metrics.authentication=kubernetes"}, "needs a token for config.metrics.authentication"},
		"no token for the scheduler":   {[]string{"--set", "prometheus.podMonitor.enabled=true", "--set", "scheduler.enabled=true", "--set", "config.scheduling.mode=scheduler"}, "needs a token for scheduler.enabled"},
		"the mode fit before 1.36":     {[]string{"--set", "config.scheduling.mode=fit", "--kube-version", "1.35.0"}, "needs Kubernetes 1.36"},
		"other dialects in a pool": {[]string{"--set", "config.scheduling.mode=fit", "--kube-version", "1.36.0", "--set", "config.pool[0].name=few",
			"--set", "config.pool[0].node_selector=a", "--set", "config.pool[0].dialects.native.number=example.com/gpus"}, "pool few has other dialects"},
		"no TOML":                     {[]string{"--set", "configFile=x"}, "no TOML"},
		"a port of metrics":           {[]string{"--set", "view.enabled=true", "--set", "view.agentPort=9394"}, "choose another port"},
		"a name of the view":          {[]string{"--set", "view.enabled=true", "--set", "fullnameOverride=nri-vgpu-view"}, "fullnameOverride is nri-vgpu-view, which is the name of the objects of view.enabled: choose another name"},
		"a name of the view's reader": {[]string{"--set", "view.enabled=true", "--set", "fullnameOverride=nri-vgpu-viewer"}, "fullnameOverride is nri-vgpu-viewer"},
		"a label of the view":         {[]string{"--set", "view.enabled=true", "--set", "nameOverride=nri-vgpu-view", "--set", "fullnameOverride=x"}, "nameOverride is nri-vgpu-view"},
		"a port of probes":            {[]string{"--set", "view.enabled=true", "--set", "view.agentPort=9396"}, "choose another port"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := helm(t, append([]string{"template", "nri-vgpu", chart, "--namespace", "nri-vgpu-system"}, test.args...)...)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error about %q", err, test.want)
			}
		})
	}
}

func unlabelled(object runtime.Object) runtime.Object {
	object.(metav1.Object).SetLabels(nil)
	return object
}

func byName(a, b runtime.Object) int {
	return strings.Compare(a.(metav1.Object).GetName(), b.(metav1.Object).GetName())
}

// TestProbes checks that the kubelet probes the agent at the configured address.
func TestProbes(t *testing.T) {
	for address, want := range map[string]corev1.ContainerPort{
		"127.0.0.1:9396": {ContainerPort: 9396, HostPort: 9396, HostIP: "127.0.0.1"},
		"[::1]:19396":    {ContainerPort: 19396, HostPort: 19396, HostIP: "::1"},
		":9500":          {ContainerPort: 9500, HostPort: 9500},
	} {
		rendered := template(t, "nri-vgpu-system", "--set", "config.http.probe_address="+strings.ReplaceAll(address, "[", `\[`))
		for _, object := range decode(t, rendered) {
			set, ok := object.(*appsv1.DaemonSet)
			if !ok || set.Name != "nri-vgpu" {
				continue
			}
			agent := set.Spec.Template.Spec.Containers[0]
			want.Name = "probes"
			if got := agent.Ports[1]; got != want {
				t.Errorf("%s: the port is %+v", address, got)
			}
			for _, probe := range []*corev1.Probe{agent.StartupProbe, agent.LivenessProbe, agent.ReadinessProbe} {
				if probe.HTTPGet.Port.StrVal != "probes" || probe.HTTPGet.Host != want.HostIP {
					t.Errorf("%s: the probe is %+v", address, probe.HTTPGet)
				}
			}
		}
	}
}

// TestPackageIsWhole checks that a packaged chart contains all files, because it cannot read other
// directories.
func TestPackageIsWhole(t *testing.T) {
	dir := t.TempDir()
	if _, err := helm(t, "package", chart, "--destination", dir); err != nil {
		t.Fatal(err)
	}
	packed, err := helm(t, "template", "nri-vgpu", filepath.Join(dir, "nri-vgpu-"+version.Base+".tgz"),
		"--namespace", "nri-vgpu-system", "--values", "testdata/operator.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(template(t, "nri-vgpu-system", "--values", "testdata/operator.yaml"), packed); diff != "" {
		t.Errorf("(-directory +package):\n%s", diff)
	}
}

func TestChartIsThisRelease(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(chart, "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"version: " + version.Base, "appVersion: " + version.Base} {
		if !strings.Contains("\n"+string(content), "\n"+line+"\n") {
			t.Errorf("Chart.yaml does not contain %q", line)
		}
	}
}

// TestSchedulerEmulatesOlderClusters checks that nri-vgpu-scheduler waits for no API that is newer
// than the cluster.
func TestSchedulerEmulatesOlderClusters(t *testing.T) {
	for cluster, want := range map[string]string{
		"v1.34.1": "1.34", "v1.36.3-eks-0a1b2c": "1.36", "v1.36.0-rc.0": "1.36", "v1.37.0": "", "v1.37.2-gke.100": "", "v1.38.0": "",
	} {
		text := template(t, "nri-vgpu-system", "--kube-version", cluster, "--values", "testdata/operator.yaml")
		_, after, emulates := strings.Cut(text, "--emulated-version=")
		version, _, _ := strings.Cut(after, "\n")
		if version != want || emulates != (want != "") {
			t.Errorf("on %s the scheduler emulates %q, want %q", cluster, version, want)
		}
	}
}

// TestEachKeyIsDescribed checks that config.toml describes each key, as the reference and the chart's
// schema contain only this description.
func TestEachKeyIsDescribed(t *testing.T) {
	all, err := keys("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range all {
		if k.comment == "" {
			t.Errorf("config.toml does not describe %s", k.path)
		}
	}
}
