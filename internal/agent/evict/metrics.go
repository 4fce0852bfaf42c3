// SPDX-License-Identifier: Apache-2.0

package evict

import "github.com/prometheus/client_golang/prometheus"

// These constants are the results of considering pods that were refused too often.
const (
	resultEvicted = "evicted"
	resultKept    = "kept"   // no controller would create another pod, or only on this node
	resultBudget  = "budget" // a disruption budget forbids the eviction
	resultFailed  = "failed" // the API server rejected the eviction
)

type metrics struct{ results *prometheus.CounterVec }

func newMetrics() metrics {
	m := metrics{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "nri_vgpu_evictions_total",
		Help: "Attempts to evict pods that fit no GPU of the node, by result: evicted; kept, no controller would recreate the pod elsewhere; budget, a disruption budget forbids the eviction; failed.",
	}, []string{"result"})}
	for _, result := range []string{resultEvicted, resultKept, resultBudget, resultFailed} {
		m.results.WithLabelValues(result)
	}
	return m
}

// Describe implements prometheus.Collector.
func (e *Evictor) Describe(ch chan<- *prometheus.Desc) { e.metrics.results.Describe(ch) }

// Collect implements prometheus.Collector.
func (e *Evictor) Collect(ch chan<- prometheus.Metric) { e.metrics.results.Collect(ch) }
