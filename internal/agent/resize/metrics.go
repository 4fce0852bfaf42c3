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

func newMetrics() metrics {
	m := metrics{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "nri_vgpu_resizes_total",
		Help: "Requested sizes of running containers' parts of GPUs, by result: done, deferred, infeasible or inprogress.",
	}, []string{"result"})}
	for _, result := range []string{"", resize.Deferred, resize.Infeasible, resize.InProgress} {
		m.results.WithLabelValues(label(result))
	}
	return m
}

func label(pending string) string {
	if pending == "" {
		return done
	}
	return strings.ToLower(pending)
}

func (m metrics) count(pending string) { m.results.WithLabelValues(label(pending)).Inc() }

// Describe implements prometheus.Collector.
func (r *Resizer) Describe(ch chan<- *prometheus.Desc) { r.metrics.results.Describe(ch) }

// Collect implements prometheus.Collector.
func (r *Resizer) Collect(ch chan<- prometheus.Metric) { r.metrics.results.Collect(ch) }
