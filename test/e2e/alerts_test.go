// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
	"github.com/nri-vgpu/nri-vgpu/test/cluster"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// likeDCGM is a series in the form of NVIDIA's exporter, in which each card takes likeDCGMWatts.
const likeDCGM = `groups:
  - name: test
    rules:
      - record: DCGM_FI_DEV_POWER_USAGE
        expr: sum by (UUID) (label_replace(nri_vgpu_gpu_memory_bytes, "UUID", "$1", "uuid", "(.+)")) * 0 + 300
`

const likeDCGMWatts = 300

// migSeries exists only on a node with MIG devices, where TestMIGDevices checks the series.
const migSeries = "nri_vgpu_gpu_mig_info"

// TestPrometheus checks that the metrics that a real Prometheus gets from agent and patcher match
// the oracle's measurements. Every documented series exists. Each alert fires when the test
// provokes its cause, and clears when the cause ends. The queries in dashboards and documents
// return data.
func TestPrometheus(t *testing.T) {
	guarded(t)
	waitCapacity(t, patience)
	// Each GPU has one of these pods, and neither has room for 7 GiB more.
	create(t, testbed.Pod("calm", testbed.Container("main", testbed.Limits{testbed.Memory: 10240}, "fill", "--max", "3GiB", "--hold", "3600")))
	create(t, testbed.Pod("busy", testbed.Container("main", testbed.Limits{testbed.Memory: 10240, testbed.Cores: 20},
		"spin", "--kernel-us", "2000", "--duration", "3600")))
	calm, busy := running(t, "calm"), running(t, "busy")
	untouched := idle(t, "untouched", 1024)
	if err := bed.WaitHeld(t.Context(), calm, 1, patience); err != nil {
		t.Fatal(err)
	}
	s := prometheus(t, likeDCGM)
	ticks := tickOf(t, busy)

	checkMemory(t, s, calm, untouched)
	checkGPUTime(t, s, ticks)
	checkNode(t, s)
	checkPower(s, calm, busy)
	eventually.Holds(t, patience, "only the alert of the throttled pod fires", func() bool {
		firing, err := s.firing()
		delete(firing, "VGPUThrottledOnIdleGPU")
		return err == nil && len(firing) == 0
	})

	undo := provoke(t, s)
	together := []string{
		"VGPUThrottledOnIdleGPU", "VGPUMemoryLimitHit", "VGPUContainersRefused", "VGPUUsageForged", "VGPUMeterDisagrees",
		"VGPUBypassDetected", "VGPUUnhealthyGPU", "VGPUNodeNotReconciled",
	}
	s.waitAlerts(true, append(together, "VGPUGuardNotLoaded")...)
	checkDocumented(t, s)
	checkQueries(t, s)
	undo()
	s.waitAlerts(false, together...)

	apart := checkWithoutAgent(t, s)
	if all := slices.Concat(together, apart); len(all) != len(alertNames(t)) {
		t.Errorf("the test provoked only %[2]v of the alerts %[1]v", alertNames(t), all)
	}
}

func alertNames(t *testing.T) []string {
	t.Helper()
	source, err := testbed.SourceRoot()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, found := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(file(t, source, "deploy/prometheus/alerts.yaml"), -1) {
		names = append(names, found[1])
	}
	return names
}

// checkMemory compares Prometheus' values with the oracle's, to the byte.
func checkMemory(t *testing.T, s *server, calm, untouched *corev1.Pod) {
	t.Helper()
	uuid, bytes := onlyGPU(t, held(t, calm))
	of := func(series, pod string) string {
		return fmt.Sprintf("nri_vgpu_container_%s{namespace=%q,pod=%q,container=\"main\"}", series, metav1.NamespaceDefault, pod)
	}
	for _, series := range []string{"used_memory_bytes", "accounted_memory_bytes", "peak_memory_bytes"} {
		s.wait(of(series, calm.Name), float64(bytes))
		s.wait(of(series, untouched.Name), 0)
	}
	s.wait(of("memory_limit_bytes", calm.Name), 10*gib)
	s.wait(of("memory_limit_bytes", untouched.Name), gib)
	s.wait(of("compute_limit_ratio", calm.Name), 1)
	s.wait(of("compute_limit_ratio", "busy"), 0.2)
	s.wait(of("processes", calm.Name), 1)
	s.wait(of("processes", untouched.Name), 0)
	s.wait(of("gpu_processes", calm.Name), 1)
	for _, series := range []string{"gpu_seconds_total", "throttled_seconds_total", "launches_total", "gpu_processes", "utilisation_ratio"} {
		s.wait(of(series, untouched.Name), 0)
	}
	s.wait("sum("+of("refused_allocations_total", untouched.Name)+")", 0)

	fill := execFill(t, untouched.Name, "--way", "vmm")
	s.wait("sum("+of("refused_allocations_total", untouched.Name)+")", float64(fill.Refusals))
	s.wait(strings.Replace(of("refused_allocations_total", untouched.Name), "}", `,way="vmm"}`, 1), float64(fill.Refusals))
	s.wait(of("peak_memory_bytes", untouched.Name), float64(fill.GrantedBytes+contextBytes))
	s.wait(of("used_memory_bytes", untouched.Name), 0)

	all, err := bed.Client.CoreV1().Pods(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	perGPU := map[string]uint64{}
	for i := range all.Items {
		for uuid, bytes := range held(t, &all.Items[i]) {
			perGPU[uuid] += bytes
		}
	}
	for _, uuid := range bed.UUIDs {
		s.wait(fmt.Sprintf("nri_vgpu_gpu_used_memory_bytes{uuid=%q}", uuid), float64(perGPU[uuid]))
	}
	s.wait(fmt.Sprintf("nri_vgpu_gpu_memory_bytes{uuid=%q}", uuid), gpuMemory)
	s.wait("sum(nri_vgpu_gpu_allocated_memory_bytes)", 21*gib)
	s.wait("sum(nri_vgpu_gpu_free_memory_bytes)", 2*gpuMemory-21*gib)
	s.wait("sum(nri_vgpu_gpu_containers)", 3)
	s.wait("sum(nri_vgpu_gpu_processes)", 2)
}

// tick is the GPU time of a pod at a time, according to the oracle.
type tick struct {
	at       time.Time
	busy     time.Duration
	launches uint64
}

// tickOf records the pod's resources until the test ends. The returned function returns the first
// record at or after a time.
func tickOf(t *testing.T, pod *corev1.Pod) func(time.Time) (tick, bool) {
	t.Helper()
	pids, err := bed.Pids(pod)
	if err != nil || len(pids) != 1 {
		t.Fatalf("%s has the processes %v on GPUs, want one: %v", pod.Name, pids, err)
	}
	o, err := oracle.Open(filepath.Join(bed.Cluster.Root(), "dev", "gpusim"))
	if err != nil {
		t.Fatal(err)
	}
	asked, answered, stop := make(chan struct{}), make(chan []tick), make(chan struct{})
	go func() {
		defer o.Close()
		var ticks []tick
		for {
			processes, err := o.Processes()
			for _, p := range processes {
				if err == nil && p.Pid == pids[0] && len(p.GPUs) == 1 {
					ticks = append(ticks, tick{time.Now(), time.Duration(p.GPUs[0].GPUTimeNs), p.GPUs[0].Launches})
				}
			}
			select {
			case <-asked:
				answered <- slices.Clone(ticks)
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() { close(stop) })
	return func(at time.Time) (tick, bool) {
		asked <- struct{}{}
		ticks := <-answered
		i := slices.IndexFunc(ticks, func(k tick) bool { return !k.at.Before(at) })
		if i < 0 {
			return tick{}, false
		}
		return ticks[i], true
	}
}

// checkGPUTime compares GPU time and launches over the same interval, until they agree. A longer
// interval reduces the effect of a busy machine at the ends of the interval.
func checkGPUTime(t *testing.T, s *server, had func(time.Time) (tick, bool)) {
	t.Helper()
	const atLeast, points, parts = 8 * time.Second, 0.02, 0.02
	compared := func(series string, real func(from, to tick, over time.Duration) float64, told func([]sample, time.Duration) float64, off float64) {
		t.Helper()
		var phrase string
		for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
			samples, err := s.query("nri_vgpu_container_" + series + `{pod="busy"}[1h]`)
			if err != nil || len(samples) < 3 {
				continue
			}
			// The first sample may be older than the oracle's first report.
			samples = samples[1:]
			first, last := samples[0].at, samples[len(samples)-1].at
			from, known := had(first)
			to, knownToo := had(last)
			if !known || !knownToo || last.Sub(first) < atLeast {
				continue
			}
			reported, is := told(samples, last.Sub(first)), real(from, to, last.Sub(first))
			if math.Abs(reported-is) <= off*max(1, is) {
				return
			}
			phrase = fmt.Sprintf("the oracle measured %.4f over %v, and Prometheus reports %.4f", is, last.Sub(first), reported)
		}
		t.Errorf("%s: %s", series, phrase)
	}
	rate := func(samples []sample, over time.Duration) float64 {
		return (samples[len(samples)-1].value - samples[0].value) / over.Seconds()
	}
	mean := func(samples []sample, _ time.Duration) float64 {
		sum := 0.0
		for _, sample := range samples {
			sum += sample.value
		}
		return sum / float64(len(samples))
	}
	share := func(from, to tick, over time.Duration) float64 {
		return (to.busy - from.busy).Seconds() / over.Seconds()
	}
	compared("gpu_seconds_total", share, rate, points)
	compared("utilisation_ratio", share, mean, points)
	compared("launches_total", func(from, to tick, over time.Duration) float64 {
		return float64(to.launches-from.launches) / over.Seconds()
	}, rate, parts)
}

// checkNode compares the patcher's and the agent's metrics of the Node with the Node.
func checkNode(t *testing.T, s *server) {
	t.Helper()
	node, err := bed.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, resource := range []string{testbed.Memory, testbed.Cores, testbed.Number} {
		quantity := node.Status.Allocatable[corev1.ResourceName(resource)]
		s.wait(fmt.Sprintf("nri_vgpu_patcher_desired{resource=%q}", resource), float64(quantity.Value()))
		s.wait(fmt.Sprintf("nri_vgpu_patcher_advertised{resource=%q}", resource), float64(quantity.Value()))
	}
	for _, build := range []string{"nri_vgpu_build_info", "nri_vgpu_patcher_build_info"} {
		s.wait(fmt.Sprintf("%s{node=%q,version=%q}", build, node.Name, version.Version), 1)
	}
	for _, one := range []string{"nri_vgpu_registered", "nri_vgpu_pods_synced", "nri_vgpu_guard_loaded", "nri_vgpu_patcher_reconciled"} {
		s.wait(one, 1)
	}
	s.wait("sum(nri_vgpu_gpu_healthy)", gpus)
	s.wait("sum(nri_vgpu_gpu_free_compute_ratio) + sum(nri_vgpu_gpu_allocated_compute_ratio)", gpus)
}

// provoke provokes the alerts whose causes can exist at the same time.
func provoke(t *testing.T, s *server) (undo func()) {
	t.Helper()
	create(t, testbed.Pod("refused", filler("main", testbed.Limits{testbed.Memory: 7168})))

	idle(t, "wants-more", 1024)
	background(t, "wants-more", "sh", "-c", "while :; do fill; sleep 1; done")

	forger := idle(t, "forger", 2560)
	background(t, "forger", "fill", "--max", "1GiB", "--hold", "3600")
	waitHeld(t, forger, gib)
	background(t, "forger", "pester", "--way", "forge", "--duration", "3600")

	background(t, "busy", "pester", "--way", "forge-time", "--duration", "3600")

	onNode(t, "fill", "--max", "64MiB", "--hold", "3600")

	xids, err := s.query(`sum(nri_vgpu_gpu_xids_total{xid="95"}) or vector(0)`)
	if err != nil {
		t.Fatal(err)
	}
	inject(t, "--gpu", "1", "recovery", "1")
	inject(t, "--gpu", "1", "xid", "95")
	s.wait(`sum(nri_vgpu_gpu_xids_total{xid="95"})`, xids[0].value+1)

	for _, pid := range nodeProcesses(t, func(_, command string) bool { return strings.Contains(command, "/"+paths.GuardProgram) }) {
		_ = syscall.Kill(pid, syscall.SIGKILL) // the stand-in ends with the guard
	}
	allow := forbid(t, s)
	return func() {
		allow()
		endOnNode(t, "e2e-fill")
		if err := bed.Inject("--gpu", "1", "recovery", "0"); err != nil { // the GPU was reset
			t.Error(err)
		}
		if err := bed.DeleteAll(t.Context(), "refused", "wants-more", "forger", "busy"); err != nil {
			t.Error(err)
		}
	}
}

// forbid revokes the patcher's right to write to its Node, and changes the Node's capacity.
func forbid(t *testing.T, s *server) (allow func()) {
	t.Helper()
	roles := bed.Client.RbacV1().ClusterRoles()
	set := func(ctx context.Context, rules []rbacv1.PolicyRule) error {
		patch, err := json.Marshal(map[string]any{"rules": rules})
		if err == nil {
			_, err = roles.Patch(ctx, "extended-resource-patcher", types.MergePatchType, patch, metav1.PatchOptions{})
		}
		return err
	}
	role, err := roles.Get(t.Context(), "extended-resource-patcher", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	reads := slices.DeleteFunc(slices.Clone(role.Rules), func(rule rbacv1.PolicyRule) bool { return slices.Contains(rule.Verbs, "patch") })
	if len(reads) == len(role.Rules) {
		t.Fatalf("the patcher has no right to take: %v", role.Rules)
	}
	allow = func() {
		if err := set(context.Background(), role.Rules); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(allow)
	if err := set(t.Context(), reads); err != nil {
		t.Fatal(err)
	}
	// Until the API server applies the change, the patcher restores the capacity.
	eventually.Holds(t, patience, "the Node stays as it should not be", func() bool {
		const other = `{"status":{"capacity":{"` + testbed.Memory + `":"7"},"allocatable":{"` + testbed.Memory + `":"7"}}}`
		_, err := bed.Client.CoreV1().Nodes().Patch(t.Context(), bed.Cluster.NodeName, types.MergePatchType, []byte(other), metav1.PatchOptions{}, "status")
		if err != nil {
			return false
		}
		time.Sleep(time.Second) // between two attempts the patcher can win
		broken, err := s.query("nri_vgpu_patcher_reconciled == 0")
		return err == nil && len(broken) == 1
	})
	return allow
}

// checkWithoutAgent provokes the alerts that need the agent or the runtime to be down, while the
// guard is down. The runtime loads the guard again at its restart.
func checkWithoutAgent(t *testing.T, s *server) (alerts []string) {
	t.Helper()
	back := away(t)
	changeConfig(t, func(config string) string {
		return replaced(t, config, "legacy_names = []", `legacy_names = ["volcano", "metagpu"]`)
	})
	create(t, greedy("unadjusted"))
	running(t, "unadjusted")
	s.waitAlerts(true, "VGPUAgentAway")
	back()
	s.waitAlerts(true, "VGPUContainersUnadjusted")
	checkLegacy(t, s)
	if err := bed.Delete(t.Context(), "unadjusted"); err != nil {
		t.Fatal(err)
	}

	if err := bed.Cluster.Stop(t.Context(), cluster.Containerd); err != nil {
		t.Fatal(err)
	}
	stopped := true
	start := func() {
		if stopped {
			stopped = false
			if err := bed.Cluster.Start(context.Background(), cluster.Containerd); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(start)
	s.waitAlerts(true, "VGPUAgentNotRegistered")
	start()
	alerts = []string{"VGPUGuardNotLoaded", "VGPUAgentAway", "VGPUContainersUnadjusted", "VGPUAgentNotRegistered"}
	s.waitAlerts(false, alerts...)
	if err := bed.WaitNodeReady(t.Context(), patience); err != nil {
		t.Error(err)
	}
	return alerts
}

// changeConfig changes the configuration of the agent's next pod until the test ends.
func changeConfig(t *testing.T, change func(string) string) {
	t.Helper()
	maps := bed.Client.CoreV1().ConfigMaps(testbed.Namespace)
	set := func(ctx context.Context, change func(string) string) error {
		config, err := maps.Get(ctx, "nri-vgpu", metav1.GetOptions{})
		if err == nil {
			config.Data["config.toml"] = change(config.Data["config.toml"])
			_, err = maps.Update(ctx, config, metav1.UpdateOptions{})
		}
		return err
	}
	before, err := bed.Config(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := set(context.Background(), func(string) string { return before }); err != nil {
			t.Error(err)
		}
	})
	if err := set(t.Context(), change); err != nil {
		t.Fatal(err)
	}
}

// checkLegacy compares the series under other exporters' names with the oracle.
func checkLegacy(t *testing.T, s *server) {
	t.Helper()
	calm := running(t, "calm")
	uuid, bytes := onlyGPU(t, held(t, calm))
	s.wait(fmt.Sprintf(`vGPU_device_memory_usage_in_bytes{zone="vGPU",podnamespace="default",podname="calm",ctrname="main",vdeviceid="0",deviceuuid=%q}`, uuid), float64(bytes))
	s.wait(`vGPU_device_memory_limit_in_bytes{podname="calm"}`, 10*gib)
	s.wait(fmt.Sprintf("HostGPUMemoryUsage{deviceuuid=%q}", uuid), float64(bytes))
	s.wait(fmt.Sprintf("metagpu_device_memory_used{device_uuid=%q,resource_name=%q}", uuid, metagpu), float64(bytes/mib))
	s.wait(fmt.Sprintf("metagpu_device_memory_total{device_uuid=%q}", uuid), gpuMemory/mib)
}

// checkDocumented checks that every series of docs/reference/metrics.md exists, with its type and
// labels.
func checkDocumented(t *testing.T, s *server) {
	t.Helper()
	source, err := testbed.SourceRoot()
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `(nri_vgpu_\\w+)` \\| (\\w+) \\| (.*?) \\|").FindAllStringSubmatch(file(t, source, "docs/reference/metrics.md"), -1)
	if len(rows) < 50 {
		t.Errorf("docs/reference/metrics.md has only %d series", len(rows))
	}
	for _, row := range rows {
		if row[1] == migSeries {
			continue
		}
		name, kind, want := row[1], row[2], regexp.MustCompile(`\w+`).FindAllString(row[3], -1)
		stored := name
		if kind == "histogram" {
			stored, want = name+"_bucket", append(want, "le")
		}
		var metadata map[string][]struct{ Type string }
		if err := s.ask("metadata", url.Values{"metric": {name}}, &metadata); err != nil || len(metadata[name]) != 1 || metadata[name][0].Type != kind {
			t.Errorf("%s is %v, want a %s: %v", name, metadata, kind, err)
		}
		var series []map[string]string
		if err := s.ask("series", url.Values{"match[]": {stored}}, &series); err != nil || len(series) == 0 {
			t.Errorf("%s is not there: %v", name, err)
			continue
		}
		labels := map[string]bool{}
		for _, one := range series {
			for label := range one {
				labels[label] = true
			}
		}
		for _, label := range append(want, "__name__", "job", "instance") {
			if !labels[label] {
				t.Errorf("%s has no label %s", name, label)
			}
			delete(labels, label)
		}
		if len(labels) > 0 {
			t.Errorf("%s has the labels %v, which docs/reference/metrics.md does not list", name, labels)
		}
	}
}

// checkPower checks the rules for DCGM's series. The only pod that uses its GPU has all of the card's
// power. A pod without GPU time has none.
func checkPower(s *server, calm, busy *corev1.Pod) {
	s.t.Helper()
	s.wait(fmt.Sprintf("container_gpu:vgpu_power:watts{namespace=%q,pod=%q,container=\"main\"}", busy.Namespace, busy.Name), likeDCGMWatts)
	s.wait(fmt.Sprintf("container_gpu:vgpu:info{namespace=%q,pod=%q,container=\"main\"}", calm.Namespace, calm.Name), 1)
	s.wait(fmt.Sprintf("count(container_gpu:vgpu_power:watts{pod=%q}) or vector(0)", calm.Name), 0)
}

// checkQueries checks that every query of the dashboards and the documents has an answer.
func checkQueries(t *testing.T, s *server) {
	t.Helper()
	source, err := testbed.SourceRoot()
	if err != nil {
		t.Fatal(err)
	}
	choices := strings.NewReplacer("$node", ".*", "$namespace", ".*", "$pod", ".*")
	for _, name := range []string{"fleet", "node", "workload"} {
		var dashboard struct {
			Panels []struct {
				Title   string
				Targets []struct{ Expr string }
			}
			Templating struct {
				List []struct{ Name, Query any }
			}
		}
		if err := json.Unmarshal([]byte(file(t, source, "deploy/grafana/"+name+".json")), &dashboard); err != nil {
			t.Fatal(err)
		}
		for _, panel := range dashboard.Panels {
			for _, target := range panel.Targets {
				s.waitAny(name+", "+panel.Title, rangeOver.ReplaceAllString(choices.Replace(target.Expr), "["+lookBack+"]"))
			}
		}
		for _, variable := range dashboard.Templating.List {
			if found := regexp.MustCompile(`label_values\((.*), (\w+)\)`).FindStringSubmatch(fmt.Sprint(variable.Query)); found != nil {
				s.waitAny(fmt.Sprint(name, ", ", variable.Name), fmt.Sprintf("group by (%s) (%s{%s!=\"\"})", found[2], strings.SplitN(found[1], "{", 2)[0], found[2]))
			}
		}
	}
	documents, err := filepath.Glob(filepath.Join(source, "docs", "*", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	queries := 0
	for _, document := range append(documents, filepath.Join(source, "README.md")) {
		for _, block := range regexp.MustCompile("(?s)```promql\n(.*?)```").FindAllStringSubmatch(file(t, filepath.Dir(document), filepath.Base(document)), -1) {
			queries++
			s.waitAny(document, rangeOver.ReplaceAllString(block[1], "["+lookBack+"]"))
		}
	}
	if queries < 3 {
		t.Errorf("the documents have only %d queries", queries)
	}
}
