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
			Name: "nri_vgpu_mps_ready", Help: "1 when the control daemon of the Multi-Process Service answers; 0 also where no GPU is shared by it."}),
		clients: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nri_vgpu_mps_clients", Help: "Processes that the Multi-Process Service serves."}),
		starts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nri_vgpu_mps_starts_total", Help: "How often the control daemon of the Multi-Process Service was started."}),
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
