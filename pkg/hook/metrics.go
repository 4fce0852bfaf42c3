// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
)

// outcome is the result of a request from the runtime, as a metric's label.
type outcome string

const (
	outcomeGranted  outcome = "granted"
	outcomeWithheld outcome = "withheld"
	outcomeExempt   outcome = "exempt"
	outcomeForeign  outcome = "foreign" // another device plugin allocates the GPUs
	outcomeRefused  outcome = "refused"
	outcomeDone     outcome = "done"
)

func (o outcome) or(err error) outcome {
	if err != nil {
		return outcomeRefused
	}
	return o
}

// Metrics are the hook's metrics.
type Metrics struct {
	latency    *prometheus.HistogramVec
	refusals   *prometheus.CounterVec
	unadjusted prometheus.Gauge
	recovered  prometheus.Counter
	// unexplained counts allocations that no pod spec requests.
	unexplained prometheus.Counter
}

// NewMetrics creates and registers the metrics.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "nri_vgpu_handler_duration_seconds",
			Help:    "Time that the container runtime waited for the plugin, by handler and outcome.",
			Buckets: []float64{.0001, .00025, .0005, .001, .002, .005, .01, .025, .05, .1, .25, .5, 1, 2},
		}, []string{"handler", "outcome"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nri_vgpu_refusals_total",
			Help: "Refused containers, by reason.",
		}, []string{"reason"}),
		unadjusted: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nri_vgpu_unadjusted_containers",
			Help: "Running containers that request or can see GPUs but were created without the plugin.",
		}),
		recovered: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nri_vgpu_recovered_assignments_total",
			Help: "Assignments recovered from running containers because their files were lost or differed.",
		}),
		unexplained: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nri_vgpu_unexplained_assignments_total",
			Help: "Containers found at the agent's start with a part of a GPU that their pod's spec does not request.",
		}),
	}
	for _, reason := range adjust.Reasons {
		m.refusals.WithLabelValues(string(reason))
	}
	for _, c := range []prometheus.Collector{m.latency, m.refusals, m.unadjusted, m.recovered, m.unexplained} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Metrics) observe(handler string, o outcome, begin time.Time) {
	m.latency.WithLabelValues(handler, string(o)).Observe(time.Since(begin).Seconds())
}

func (m *Metrics) refused(err error) {
	var refusal *adjust.RefusalError
	if errors.As(err, &refusal) {
		m.refusals.WithLabelValues(string(refusal.Reason)).Inc()
	}
}

// inFlight records the start time of each running handler, for the liveness
// probe.
type inFlight struct {
	mu    sync.Mutex
	next  int
	since map[int]time.Time
}

// enter records that a handler runs. The returned function records the handler's end.
func (f *inFlight) enter(now time.Time) (leave func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.since == nil {
		f.since = map[int]time.Time{}
	}
	f.next++
	id := f.next
	f.since[id] = now
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.since, id)
	}
}

func (f *inFlight) longest(now time.Time) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	var longest time.Duration
	for _, since := range f.since {
		longest = max(longest, now.Sub(since))
	}
	return longest
}
