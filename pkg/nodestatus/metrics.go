// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/nri-vgpu/nri-vgpu/internal/version"
)

const namespace = "nri_vgpu_patcher"

// metrics are the patcher's metrics. metrics computes the gauges at each scrape from the loop's
// last state.
type metrics struct {
	registry   *prometheus.Registry
	reconciles *prometheus.CounterVec
	patches    *prometheus.CounterVec
	failures   prometheus.Counter
	drifts     prometheus.Counter

	node       string
	snapshot   func() state
	build      *prometheus.Desc
	reconciled *prometheus.Desc
	desired    *prometheus.Desc
	advertised *prometheus.Desc
	reportAge  *prometheus.Desc
}

func newMetrics(node string, snapshot func() state) *metrics {
	name := func(s string) string { return prometheus.BuildFQName(namespace, "", s) }
	m := &metrics{
		registry: prometheus.NewRegistry(),
		reconciles: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: name("reconciles_total"),
			Help: "Comparisons of the Node with the agent's report, by result: unchanged; written; deferred, the write waits for the rate limit; failed, the API server rejected the write; unknown, there is no Node.",
		}, []string{"result"}),
		patches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: name("patches_total"), Help: "Writes to the Node's status, by reason.",
		}, []string{"reason"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: name("patch_failures_total"), Help: "Writes to the Node's status that failed.",
		}),
		drifts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: name("drift_restored_total"), Help: "Changes by other writers that the patcher reverted.",
		}),
		node: node, snapshot: snapshot,
		build: prometheus.NewDesc(name("build_info"),
			"Always 1; labels state the patcher's version and node.", []string{"node", "version", "go_version"}, nil),
		reconciled: prometheus.NewDesc(name("reconciled"),
			"1 if the Node matches the agent's report.", nil, nil),
		desired: prometheus.NewDesc(name("desired"),
			"Units of each resource that the Node should have.", []string{"resource"}, nil),
		advertised: prometheus.NewDesc(name("advertised"),
			"Units of each resource that the Node has as allocatable.", []string{"resource"}, nil),
		reportAge: prometheus.NewDesc(name("report_age_seconds"),
			"Age of the agent's last heartbeat.", nil, nil),
	}
	for _, reason := range []string{reasonAdvertise, reasonRestore, reasonWithdraw, reasonCondition, reasonAnnotations} {
		m.patches.WithLabelValues(reason)
	}
	for _, result := range []string{resultUnchanged, resultWritten, resultDeferred, resultFailed, resultUnknown} {
		m.reconciles.WithLabelValues(result)
	}
	m.registry.MustRegister(m.reconciles, m.patches, m.failures, m.drifts, m,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// These constants are the results of an iteration of the loop, as the metric's label.
const (
	resultUnchanged = "unchanged"
	resultWritten   = "written"
	resultDeferred  = "deferred" // a due write must wait
	resultFailed    = "failed"
	resultUnknown   = "unknown" // the Node is unknown
)

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.build
	ch <- m.reconciled
	ch <- m.desired
	ch <- m.advertised
	ch <- m.reportAge
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	s := m.snapshot()
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	gauge(m.build, 1, m.node, version.Version, runtime.Version())
	done := 0.0
	if s.problem == "" {
		done = 1
	}
	gauge(m.reconciled, done)
	for resource, units := range s.desired {
		gauge(m.desired, float64(units), resource)
	}
	for resource, units := range s.advertised {
		gauge(m.advertised, float64(units), resource)
	}
	if s.observed.Report != nil {
		gauge(m.reportAge, s.observed.Age(time.Now()).Seconds())
	}
}
