// SPDX-License-Identifier: Apache-2.0

package mps

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	ready, clients prometheus.Gauge
	starts         prometheus.Counter
}

func newMetrics() metrics {
	return metrics{
		ready: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nri_vgpu_mps_ready", Help: "1 if the MPS control daemon answers, else 0. The value is also 0 if no GPU is shared by MPS."}),
		clients: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nri_vgpu_mps_clients", Help: "Processes that MPS serves."}),
		starts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nri_vgpu_mps_starts_total", Help: "Starts of the MPS control daemon."}),
	}
}

// Describe implements prometheus.Collector.
func (s *Supervisor) Describe(ch chan<- *prometheus.Desc) {
	s.metrics.ready.Describe(ch)
	s.metrics.clients.Describe(ch)
	s.metrics.starts.Describe(ch)
}

// Collect implements prometheus.Collector.
func (s *Supervisor) Collect(ch chan<- prometheus.Metric) {
	s.metrics.ready.Collect(ch)
	s.metrics.clients.Collect(ch)
	s.metrics.starts.Collect(ch)
}
