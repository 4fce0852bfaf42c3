// SPDX-License-Identifier: Apache-2.0

package contexts

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// These constants are the outcomes of attempts to measure.
const (
	outcomeMeasured = "measured"
	outcomeFailed   = "failed"
)

// Metrics exports the metrics of Sizes.
type Metrics struct{ Sizes *Sizes }

var (
	descBytes = prometheus.NewDesc("nri_vgpu_gpu_context_bytes",
		fmt.Sprintf("Size of a CUDA context on the GPU, measured or configured; missing if unknown, in which case a context is charged %d MiB.", limits.UnknownContextBytes>>20),
		[]string{"uuid"}, nil)
	descAttempts = prometheus.NewDesc("nri_vgpu_context_measurements_total",
		"Attempts to measure the size of a CUDA context, by outcome: measured; failed, the agent logs the reason and retries.",
		[]string{"outcome"}, nil)
)

// Describe implements prometheus.Collector.
func (m Metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- descBytes
	ch <- descAttempts
}

// Collect implements prometheus.Collector.
func (m Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, g := range m.Sizes.GPUs() {
		if bytes := m.Sizes.Of(g.UUID); bytes > 0 && g.UUID != "" {
			ch <- prometheus.MustNewConstMetric(descBytes, prometheus.GaugeValue, float64(bytes), g.UUID)
		}
	}
	m.Sizes.mu.Lock()
	defer m.Sizes.mu.Unlock()
	for _, outcome := range []string{outcomeMeasured, outcomeFailed} {
		ch <- prometheus.MustNewConstMetric(descAttempts, prometheus.CounterValue, float64(m.Sizes.counts[outcome]), outcome)
	}
}
