package nodestatus

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

const namespace = "nri_vgpu_patcher"

// metrics are the patcher's figures. Gauges are computed when scraped, from
// the loop's last state.
type metrics struct {
	registry *prometheus.Registry
	patches  *prometheus.CounterVec
	failures prometheus.Counter
	drifts   prometheus.Counter

	snapshot   func() state
	desired    *prometheus.Desc
	advertised *prometheus.Desc
	reportAge  *prometheus.Desc
}

func newMetrics(snapshot func() state) *metrics {
	name := func(s string) string { return prometheus.BuildFQName(namespace, "", s) }
	m := &metrics{
		registry: prometheus.NewRegistry(),
		patches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: name("patches_total"), Help: "Writes to the Node's status, by reason.",
		}, []string{"reason"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: name("patch_failures_total"), Help: "Writes to the Node's status that failed.",
		}),
		drifts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: name("drift_restored_total"), Help: "Changes by other writers that were undone.",
		}),
		snapshot: snapshot,
		desired: prometheus.NewDesc(name("desired"),
			"Units that the node should advertise.", []string{"resource"}, nil),
		advertised: prometheus.NewDesc(name("advertised"),
			"Units that the Node has as allocatable.", []string{"resource"}, nil),
		reportAge: prometheus.NewDesc(name("report_age_seconds"),
			"Time since the agent was last known to live.", nil, nil),
	}
	for _, reason := range []string{reasonAdvertise, reasonRestore, reasonWithdraw} {
		m.patches.WithLabelValues(reason)
	}
	m.registry.MustRegister(m.patches, m.failures, m.drifts, m,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
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
