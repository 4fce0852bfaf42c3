// SPDX-License-Identifier: Apache-2.0

package events

import "github.com/prometheus/client_golang/prometheus"

// These are the causes of dropped Events.
const (
	causeQueue = "queue" // too many Events arrived at once
	causeRate  = "rate"  // too many different notes of a reason on one object
	causeAPI   = "api"   // the API server did not accept the Event
)

type metrics struct{ written, dropped *prometheus.CounterVec }

func newMetrics() metrics {
	m := metrics{
		written: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nri_vgpu_events_total",
			Help: "Kubernetes Events written, by reason.",
		}, []string{"reason"}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nri_vgpu_events_dropped_total",
			Help: "Kubernetes Events not written, by cause: queue and rate, too many Events; api, the API server rejected them.",
		}, []string{"cause"}),
	}
	for _, cause := range []string{causeQueue, causeRate, causeAPI} {
		m.dropped.WithLabelValues(cause)
	}
	return m
}

func (m metrics) wrote(reason Reason) { m.written.WithLabelValues(reason.Name).Inc() }

func (m metrics) drop(cause string) { m.dropped.WithLabelValues(cause).Inc() }

// Describe implements prometheus.Collector.
func (r *Recorder) Describe(ch chan<- *prometheus.Desc) {
	r.metrics.written.Describe(ch)
	r.metrics.dropped.Describe(ch)
}

// Collect implements prometheus.Collector.
func (r *Recorder) Collect(ch chan<- prometheus.Metric) {
	r.metrics.written.Collect(ch)
	r.metrics.dropped.Collect(ch)
}
