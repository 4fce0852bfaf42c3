// SPDX-License-Identifier: Apache-2.0

package resize

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/resize"
)

type metrics struct{ results *prometheus.CounterVec }

// done is the result of a size that is in force.
const done = "done"

// resultOf returns the result as a label of the metric, and in Events.
func resultOf(pending string) string {
	switch pending {
	case "":
		return done
	case resize.InProgress:
		return "in_progress"
	}
	return strings.ToLower(pending)
}

func newMetrics() metrics {
	m := metrics{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "nri_vgpu_resizes_total",
		Help: "Requested sizes of running containers' parts of GPUs, by result: done, deferred, infeasible or in_progress.",
	}, []string{"result"})}
	for _, result := range []string{"", resize.Deferred, resize.Infeasible, resize.InProgress} {
		m.results.WithLabelValues(resultOf(result))
	}
	return m
}

func (m metrics) count(pending string) { m.results.WithLabelValues(resultOf(pending)).Inc() }

// Describe implements prometheus.Collector.
func (r *Resizer) Describe(ch chan<- *prometheus.Desc) { r.metrics.results.Describe(ch) }

// Collect implements prometheus.Collector.
func (r *Resizer) Collect(ch chan<- prometheus.Metric) { r.metrics.results.Collect(ch) }
