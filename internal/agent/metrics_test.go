// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nri-vgpu/nri-vgpu/internal/daemon"
	"github.com/nri-vgpu/nri-vgpu/internal/daemon/endpoint"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/nodestatus"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

var update = flag.Bool("update", false, "write docs/reference/metrics.md anew")

// series is a registered metric.
type series struct {
	name, help string
	labels     []string
}

// kind returns the series' type by the naming conventions. The linter rejects a series that has
// another type.
func (s series) kind() dto.MetricType {
	switch {
	case s.name == "metagpu_device_memory_total": // MetaGPU's name for an amount
		return dto.MetricType_GAUGE
	case strings.HasSuffix(s.name, "_total"):
		return dto.MetricType_COUNTER
	case strings.HasSuffix(s.name, "_duration_seconds"):
		return dto.MetricType_HISTOGRAM
	default:
		return dto.MetricType_GAUGE
	}
}

// nobody returns a client of an API server that does not exist, because registering metrics needs
// no API server.
func nobody(t *testing.T) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// assembled returns the parts of an agent that does not run.
func assembled(t *testing.T, change func(*config.Config)) *parts {
	t.Helper()
	return assembledWith(t, nobody(t), change)
}

// assembledWith returns the parts of an agent with a client of an API server.
func assembledWith(t testing.TB, client kubernetes.Interface, change func(*config.Config)) *parts {
	t.Helper()
	cfg := config.Default()
	dir := t.TempDir()
	cfg.Paths = config.Paths{InstallDir: dir, RunDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state")}
	cfg.Injection.CDIOutputDir = filepath.Join(dir, "cdi")
	cfg.Injection.CDISpecDirs = []string{cfg.Injection.CDIOutputDir}
	cfg.Driver = config.Driver{Root: dir} // without a driver
	change(&cfg)
	p, err := assemble(t.Context(), Options{Node: "node", Log: slog.New(slog.DiscardHandler)}, daemon.Pooled{Config: cfg}, clients{reads: client, writes: client, answers: client})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func patcher(t *testing.T) *nodestatus.Patcher {
	t.Helper()
	p, err := nodestatus.New(nodestatus.Options{
		Client: nobody(t), NodeName: "node", Config: config.Default(), ReportPath: "x", StaleAfter: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

var description = regexp.MustCompile(`^Desc\{fqName: "(.*?)", help: "(.*)", unit: ".*?", constLabels: \{.*\}, variableLabels: \{(.*)\}\}$`)

// registered returns every series that a collector may send, except the series of every Go program.
func registered(t *testing.T, c prometheus.Collector) []series {
	t.Helper()
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		c.Describe(descs)
	}()
	var all []series
	for desc := range descs {
		found := description.FindStringSubmatch(desc.String())
		if found == nil {
			t.Fatalf("this describes a series in another form: %s", desc)
		}
		s := series{name: found[1], help: found[2]}
		if found[3] != "" {
			s.labels = strings.Split(found[3], ",")
		}
		if !strings.HasPrefix(s.name, "go_") && !strings.HasPrefix(s.name, "process_") {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b series) int { return cmp.Compare(a.name, b.name) })
	return all
}

// lint runs Prometheus' linter over one metric of each series, and over the gathered metrics.
func lint(t *testing.T, all []series, gatherer prometheus.Gatherer) {
	t.Helper()
	families, err := gatherer.Gather()
	if err != nil {
		t.Error(err)
	}
	for _, family := range families {
		i := slices.IndexFunc(all, func(s series) bool { return s.name == family.GetName() })
		if i >= 0 && family.GetType() != all[i].kind() {
			t.Errorf("%s is a %s, want a %s", family.GetName(), family.GetType(), all[i].kind())
		}
	}
	for _, s := range all {
		kind, one := s.kind(), &dto.Metric{}
		for _, label := range s.labels {
			one.Label = append(one.Label, &dto.LabelPair{Name: &label, Value: new(string)})
		}
		families = append(families, &dto.MetricFamily{Name: &s.name, Help: &s.help, Type: &kind, Metric: []*dto.Metric{one}})
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Error(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestMetrics checks that every series follows Prometheus' naming conventions, and
// docs/reference/metrics.md lists it.
func TestMetrics(t *testing.T) {
	agent, patcher := assembled(t, func(*config.Config) {}).metrics, patcher(t).Metrics()
	ofAgent, ofPatcher := registered(t, agent), registered(t, patcher)
	lint(t, ofAgent, agent)
	lint(t, ofPatcher, patcher)
	document(t, "agent", ofAgent)
	document(t, "patcher", ofPatcher)
	// The names of other exporters follow no conventions.
	legacy := registered(t, assembled(t, func(cfg *config.Config) {
		cfg.Metrics.LegacyNames = []string{config.LegacyVolcano, config.LegacyMetaGPU}
	}).metrics)
	document(t, "legacy", slices.DeleteFunc(legacy, func(s series) bool {
		return slices.ContainsFunc(ofAgent, func(own series) bool { return own.name == s.name })
	}))
}

// scrape returns the answer of /metrics.
func scrape(t *testing.T, p *parts) string {
	t.Helper()
	answer := httptest.NewRecorder()
	endpoint.Metrics(p.metrics, slog.New(slog.DiscardHandler)).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if answer.Code != http.StatusOK {
		t.Fatalf("got %d: %s", answer.Code, answer.Body)
	}
	return answer.Body.String()
}

// TestNamesakesHaveOneSeries checks that pods of one name have one series. A pod that was deleted
// by force may still run while its namesake runs.
func TestNamesakesHaveOneSeries(t *testing.T) {
	p := assembled(t, func(cfg *config.Config) {
		cfg.Metrics.LegacyNames = []string{config.LegacyVolcano, config.LegacyMetaGPU}
	})
	p.files.Usage = nil // mounting usage pages takes root
	const gpu = "GPU-00000000-0000-0000-0000-000000000001"
	for uid, memory := range map[string]uint64{"one": 1 << 30, "two": 2 << 30} {
		a := placement.Allocation{PodUID: uid, Namespace: "ns", Pod: "web-0", Container: "main", Kind: "app",
			Devices: []placement.Device{{UUID: gpu, MemoryBytes: memory, ComputePPM: 300_000}}}
		if err := p.ledger.Restore(a); err != nil {
			t.Fatal(err)
		}
		if err := p.files.Save(a, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	page, labels := scrape(t, p), `{container="main",namespace="ns",pod="web-0",uuid="`+gpu+`"} `
	for _, want := range []string{
		"nri_vgpu_container_memory_limit_bytes" + labels + "3.221225472e+09\n",
		"nri_vgpu_container_compute_limit_ratio" + labels + "0.3\n",
		"nri_vgpu_container_accounted_memory_bytes" + labels + "0\n",
		`vGPU_device_memory_limit_in_bytes{ctrname="main",deviceuuid="` + gpu + `",podname="web-0",podnamespace="ns",vdeviceid="0",zone="vGPU"} 3.221225472e+09` + "\n",
	} {
		if strings.Count(page, want) != 1 {
			t.Errorf("the page has not %q once:\n%s", want, page)
		}
	}
}

// broken is a collector whose series cannot be written.
type broken struct{ *prometheus.Desc }

func (b broken) Describe(ch chan<- *prometheus.Desc) { ch <- b.Desc }

func (b broken) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.NewInvalidMetric(b.Desc, errors.New("out of paper"))
}

func TestABrokenSeriesHidesNoOther(t *testing.T) {
	p := assembled(t, func(*config.Config) {})
	if err := p.metrics.Register(broken{prometheus.NewDesc("broken", "Broken.", nil, nil)}); err != nil {
		t.Fatal(err)
	}
	if page := scrape(t, p); !strings.Contains(page, "\nnri_vgpu_registered 0\n") {
		t.Errorf("the other metrics are missing:\n%s", page)
	}
}

// document compares a part of docs/reference/metrics.md with the registered series.
func document(t *testing.T, part string, all []series) {
	t.Helper()
	const path = "../../docs/reference/metrics.md"
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := fmt.Sprintf("<!-- %s: begin, written by a test -->\n", part), fmt.Sprintf("<!-- %s: end -->\n", part)
	head, rest, ok := strings.Cut(string(raw), begin)
	have, tail, complete := strings.Cut(rest, end)
	if !ok || !complete {
		t.Fatalf("%s has no part %q", path, part)
	}
	want := table(all)
	if have == want {
		return
	}
	if !*update {
		t.Errorf("the part %q of docs/reference/metrics.md is stale: run go test ./internal/agent -run TestMetrics -update", part)
		return
	}
	if err := os.WriteFile(path, []byte(head+begin+want+end+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}

func table(all []series) string {
	var b strings.Builder
	b.WriteString("| series | type | labels | is |\n|---|---|---|---|\n")
	for _, s := range all {
		labels := "–"
		if len(s.labels) > 0 {
			labels = "`" + strings.Join(s.labels, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", s.name, strings.ToLower(s.kind().String()), labels, s.help)
	}
	return b.String()
}
