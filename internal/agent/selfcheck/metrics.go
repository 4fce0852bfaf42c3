// SPDX-License-Identifier: Apache-2.0

package selfcheck

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nri-vgpu/nri-vgpu/internal/agent/namesakes"
)

var (
	containerLabels = []string{"namespace", "pod", "container", "uuid"}

	descObserved = prometheus.NewDesc("nri_vgpu_container_observed_gpu_seconds_total",
		"GPU time that the container had while it was checked, as the driver samples it.", containerLabels, nil)
	descMetered = prometheus.NewDesc("nri_vgpu_container_metered_gpu_seconds_total",
		"GPU time that the container was charged while it was checked, by its own account.", containerLabels, nil)
	descRatio = prometheus.NewDesc("nri_vgpu_container_meter_ratio",
		"Observed to metered GPU time of the last 10 minutes; missing where nothing was metered.", containerLabels, nil)
	descLow = prometheus.NewDesc("nri_vgpu_container_meter_low_ratio",
		"The least that the ratio may be, as what is observed are samples: 3 sigma below.", containerLabels, nil)
	descHigh = prometheus.NewDesc("nri_vgpu_container_meter_high_ratio",
		"The most that the ratio may be, as what is observed are samples: 3 sigma above.", containerLabels, nil)
	descDisagreement = prometheus.NewDesc("nri_vgpu_container_meter_disagreement_ratio",
		"Part of the GPU's time by which observed and metered time of the last 10 minutes differ beyond 3 sigma, -1 to 1; above 0 the container had more than it was charged.", containerLabels, nil)
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
		tell := func(desc *prometheus.Desc, kind prometheus.ValueType, value float64) {
			ch <- prometheus.MustNewConstMetric(desc, kind, value, k.namespace, k.pod, p.Container, p.UUID)
		}
		tell(descObserved, prometheus.CounterValue, k.observed.Seconds())
		tell(descMetered, prometheus.CounterValue, max(k.metered.Seconds(), 0))
		v := judge(k.window.sum(), k.period)
		tell(descDisagreement, prometheus.GaugeValue, v.Disagreement)
		if ratio, low, high, ok := v.Ratio(); ok {
			tell(descRatio, prometheus.GaugeValue, ratio)
			tell(descLow, prometheus.GaugeValue, low)
			tell(descHigh, prometheus.GaugeValue, high)
		}
	}
}
