// SPDX-License-Identifier: Apache-2.0

// Package namesakes merges the metric series of containers that have the same names. A pod that was
// deleted by force may still run while its successor runs. Prometheus rejects two series with the
// same labels.
package namesakes

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Merge sends the gauges and counters that collect sends. Merge merges series with the same labels
// into their sum. For the descriptions in largest, whose sums are meaningless, Merge sends the
// largest value.
func Merge(ch chan<- prometheus.Metric, collect func(chan<- prometheus.Metric), largest ...*prometheus.Desc) {
	told := make(chan prometheus.Metric)
	go func() {
		defer close(told)
		collect(told)
	}()
	var order []key
	all := map[key]*series{}
	for m := range told {
		s := &series{desc: m.Desc()}
		if err := m.Write(&s.Metric); err != nil {
			ch <- prometheus.NewInvalidMetric(m.Desc(), err)
			continue
		}
		k := s.key()
		first, known := all[k]
		if !known {
			order, all[k] = append(order, k), s
			continue
		}
		first.merge(s, slices.Contains(largest, s.desc))
	}
	for _, k := range order {
		ch <- all[k]
	}
}

// key distinguishes series.
type key struct {
	desc   *prometheus.Desc
	labels string
}

// series is a metric as the collector sent it.
type series struct {
	dto.Metric
	desc *prometheus.Desc
}

// Desc implements prometheus.Metric.
func (s *series) Desc() *prometheus.Desc { return s.desc }

// Write implements prometheus.Metric.
func (s *series) Write(out *dto.Metric) error {
	out.Label, out.Gauge, out.Counter = s.Label, s.Gauge, s.Counter
	return nil
}

// key joins the labels' values, which are sorted by the labels' names.
func (s *series) key() key {
	var b strings.Builder
	for _, label := range s.Label {
		b.WriteString(label.GetValue())
		b.WriteByte(0xff) // in no label: labels are UTF-8
	}
	return key{s.desc, b.String()}
}

func (s *series) merge(other *series, largest bool) {
	join := func(a, b *float64) {
		if largest {
			*a = max(*a, *b)
		} else {
			*a += *b
		}
	}
	if s.Gauge != nil {
		join(s.Gauge.Value, other.Gauge.Value)
	}
	if s.Counter != nil {
		join(s.Counter.Value, other.Counter.Value)
	}
}
