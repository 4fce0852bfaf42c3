// SPDX-License-Identifier: Apache-2.0

package detect

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// Metrics are the metrics of a Detector.
type Metrics struct {
	kinds       *prometheus.GaugeVec
	unaccounted *prometheus.GaugeVec
	found       *prometheus.CounterVec
	stopped     *prometheus.CounterVec
	observed    *prometheus.GaugeVec
	mismatches  prometheus.Counter
	cut         prometheus.Counter
	displaced   prometheus.Gauge
}

func newMetrics() *Metrics {
	m := &Metrics{
		kinds: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "nri_vgpu_gpu_api_processes",
			Help: "Processes that use the GPU, by kind of API, as the driver lists them: compute (CUDA, OpenCL), graphics (Vulkan, OpenGL), video (encoder, decoder). A process can count under several kinds.",
		}, []string{"uuid", "api"}),
		unaccounted: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "nri_vgpu_unaccounted_processes",
			Help: "Unaccounted processes on the GPU, by kind: bypass, outside the limits of the process's container; pod, in a container without a part of a GPU; host, outside of pods. A process is unaccounted if no container with a part of the GPU accounts for it.",
		}, []string{"uuid", "kind"}),
		found: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nri_vgpu_unaccounted_processes_found_total",
			Help: "Unaccounted processes found on GPUs, by kind.",
		}, []string{"kind"}),
		stopped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nri_vgpu_unaccounted_processes_stopped_total",
			Help: "Unaccounted processes stopped because detection.action or detection.host_action is stop, by kind.",
		}, []string{"kind"}),
		observed: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "nri_vgpu_container_observed_memory_bytes",
			Help: "GPU memory that the driver reports for the container, where its usage page reports less.",
		}, []string{"namespace", "pod", "container", "uuid"}),
		mismatches: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nri_vgpu_usage_mismatches_total",
			Help: "Times that a container held more memory than its usage page reported, or than its limit.",
		}),
		cut: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nri_vgpu_usage_pages_cut_total",
			Help: "Checks that found a usage page that a container had made larger.",
		}),
	}
	m.displaced = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "nri_vgpu_displaced_containers",
		Help: "Running containers in which nri-vgpu's files are no longer where the agent mounted them.",
	})
	for _, kind := range []Kind{Bypass, Pod, Host} {
		m.found.WithLabelValues(string(kind))
		m.stopped.WithLabelValues(string(kind))
	}
	return m
}

func (m *Metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.kinds, m.unaccounted, m.found, m.stopped, m.observed, m.mismatches, m.cut, m.displaced}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.all() {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.all() {
		c.Collect(ch)
	}
}

func (m *Metrics) setFindings(findings []finding) {
	m.unaccounted.Reset()
	for _, f := range findings {
		m.unaccounted.WithLabelValues(f.uuid, string(f.kind)).Inc()
	}
}

func (m *Metrics) setMismatches(p *picture, mismatches []mismatch) {
	m.observed.Reset()
	for _, x := range mismatches {
		c := p.containers[x.container]
		m.observed.WithLabelValues(c.Namespace, c.Pod, c.Container, c.Devices[x.device].UUID).Add(float64(x.held)) // containers with the same names share a series
	}
}

// setKinds counts all processes that the driver lists, by kind of API.
func (m *Metrics) setKinds(processes map[string][]gpu.Process) {
	m.kinds.Reset()
	for uuid, running := range processes {
		for _, kind := range gpu.Kinds {
			count := 0
			for _, p := range running {
				if p.APIs.Has(kind.API) {
					count++
				}
			}
			m.kinds.WithLabelValues(uuid, kind.Name).Set(float64(count))
		}
	}
}
