// SPDX-License-Identifier: Apache-2.0

package selfcheck

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nri-vgpu/nri-vgpu/internal/agent/namesakes"
)

var (
	containerLabels = []string{"namespace", "pod", "container", "uuid"}

	descObserved = prometheus.NewDesc("nri_vgpu_container_observed_gpu_seconds_total",
		"GPU time that the container used during checks, as the driver samples it.", containerLabels, nil)
	descMetered = prometheus.NewDesc("nri_vgpu_container_metered_gpu_seconds_total",
		"GPU time charged to the container during checks, as its usage page reports it.", containerLabels, nil)
	descRatio = prometheus.NewDesc("nri_vgpu_container_meter_ratio",
		"Ratio of observed to metered GPU time in the last 10 minutes; missing if nothing was metered.", containerLabels, nil)
	descLow = prometheus.NewDesc("nri_vgpu_container_meter_low_ratio",
		"Lower bound of the ratio: 3 sigma of the sampling error below it.", containerLabels, nil)
	descHigh = prometheus.NewDesc("nri_vgpu_container_meter_high_ratio",
		"Upper bound of the ratio: 3 sigma of the sampling error above it.", containerLabels, nil)
	descDisagreement = prometheus.NewDesc("nri_vgpu_container_meter_disagreement_ratio",
		"Part of the GPU's time by which observed and metered time differ beyond 3 sigma in the last 10 minutes, -1 to 1; positive if the container used more than it was charged.", containerLabels, nil)
)

// Describe implements prometheus.Collector.
func (c *Checker) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descObserved, descMetered, descRatio, descLow, descHigh, descDisagreement} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. Collect asks neither the driver nor usage pages.
func (c *Checker) Collect(ch chan<- prometheus.Metric) {
	namesakes.Merge(ch, c.collect, descRatio, descLow, descHigh, descDisagreement)
}

func (c *Checker) collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p, k := range c.checks {
		if k.period == 0 {
			continue
		}
		send := func(desc *prometheus.Desc, kind prometheus.ValueType, value float64) {
			ch <- prometheus.MustNewConstMetric(desc, kind, value, k.namespace, k.pod, p.Container, p.UUID)
		}
		send(descObserved, prometheus.CounterValue, k.observed.Seconds())
		send(descMetered, prometheus.CounterValue, max(k.metered.Seconds(), 0))
		v := judge(k.window.sum(), k.period)
		send(descDisagreement, prometheus.GaugeValue, v.Disagreement)
		if ratio, low, high, ok := v.Ratio(); ok {
			send(descRatio, prometheus.GaugeValue, ratio)
			send(descLow, prometheus.GaugeValue, low)
			send(descHigh, prometheus.GaugeValue, high)
		}
	}
}
