// SPDX-License-Identifier: Apache-2.0

package registry

import "github.com/prometheus/client_golang/prometheus"

// Name is the name of a container in Kubernetes.
type Name struct{ Namespace, Pod, Container string }

// Metrics exports the registry's metrics.
type Metrics struct {
	Registry *Registry
	// Names returns the names of the node's GPU containers, by the runtime's ids.
	Names func() map[string]Name
}

var (
	descProcesses = prometheus.NewDesc("nri_vgpu_container_processes",
		"Processes of the container that use CUDA and registered with this agent, at most 256; processes started before the agent are missing.",
		[]string{"namespace", "pod", "container"}, nil)
	descRegistrations = prometheus.NewDesc("nri_vgpu_registrations_total",
		"Registrations of processes that begin to use CUDA, by outcome: registered; known, registered before; foreign, in no pod; full, the container or the agent records no more; gone, the process had ended; busy, too many connections were open.",
		[]string{"outcome"}, nil)
	descHeld = prometheus.NewDesc("nri_vgpu_holdings_questions_total",
		"Requests of processes for the memory they physically hold, by outcome: answered; unanswered, the driver was slow or hung; busy, too many requests waited; gone, the process had ended.",
		[]string{"outcome"}, nil)
	descInvalid = prometheus.NewDesc("nri_vgpu_registrations_invalid_total",
		"Invalid messages of processes at the agent's socket.", nil, nil)
)

// Describe implements prometheus.Collector.
func (m Metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- descProcesses
	ch <- descRegistrations
	ch <- descHeld
	ch <- descInvalid
}

// Collect implements prometheus.Collector.
func (m Metrics) Collect(ch chan<- prometheus.Metric) {
	counts, named := m.Registry.counts(), map[Name]int{}
	for id, name := range m.Names() {
		named[name] += counts[id]
	}
	for name, n := range named {
		ch <- prometheus.MustNewConstMetric(descProcesses, prometheus.GaugeValue, float64(n), name.Namespace, name.Pod, name.Container)
	}
	m.Registry.mu.Lock()
	defer m.Registry.mu.Unlock()
	for _, outcome := range []Outcome{Registered, Known, Foreign, Full, Gone, Busy} {
		ch <- prometheus.MustNewConstMetric(descRegistrations, prometheus.CounterValue, float64(m.Registry.outcomes[outcome]), string(outcome))
	}
	for _, outcome := range []Outcome{Answered, Unanswered, Gone, Busy} {
		ch <- prometheus.MustNewConstMetric(descHeld, prometheus.CounterValue, float64(m.Registry.held[outcome]), string(outcome))
	}
	ch <- prometheus.MustNewConstMetric(descInvalid, prometheus.CounterValue, float64(m.Registry.invalid))
}
