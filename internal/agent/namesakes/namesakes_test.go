// SPDX-License-Identifier: Apache-2.0

package namesakes

import (
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

var (
	used  = prometheus.NewDesc("used_bytes", "Used.", []string{"pod", "container"}, prometheus.Labels{"zone": "z"})
	spent = prometheus.NewDesc("spent_seconds_total", "Spent.", []string{"pod", "container"}, nil)
	peak  = prometheus.NewDesc("peak_bytes", "Peak.", []string{"pod", "container"}, nil)
)

// source is a collector that sends its function's metrics, merged.
type source func(ch chan<- prometheus.Metric)

func (f source) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{used, spent, peak} {
		ch <- d
	}
}

func (f source) Collect(ch chan<- prometheus.Metric) { Merge(ch, f, peak) }

func TestMerge(t *testing.T) {
	all := source(func(ch chan<- prometheus.Metric) {
		send := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, kind, value, labels...)
		}
		send(used, prometheus.GaugeValue, 3, "web-0", "main")
		send(used, prometheus.GaugeValue, 4, "web-0", "main")
		send(used, prometheus.GaugeValue, 5, "web-0", "side")
		send(used, prometheus.GaugeValue, 6, "eb-0", "mainw") // the same letters
		send(spent, prometheus.CounterValue, 1, "web-0", "main")
		send(spent, prometheus.CounterValue, 2, "web-0", "main")
		send(spent, prometheus.CounterValue, 3, "web-0", "main")
		send(peak, prometheus.GaugeValue, 8, "web-0", "main")
		send(peak, prometheus.GaugeValue, 9, "web-0", "main")
		send(peak, prometheus.GaugeValue, 7, "web-0", "main")
	})
	want := `
# HELP peak_bytes Peak.
# TYPE peak_bytes gauge
peak_bytes{container="main",pod="web-0"} 9
# HELP spent_seconds_total Spent.
# TYPE spent_seconds_total counter
spent_seconds_total{container="main",pod="web-0"} 6
# HELP used_bytes Used.
# TYPE used_bytes gauge
used_bytes{container="main",pod="web-0",zone="z"} 7
used_bytes{container="mainw",pod="eb-0",zone="z"} 6
used_bytes{container="side",pod="web-0",zone="z"} 5
`
	if err := testutil.CollectAndCompare(all, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

func TestWhatCannotBeWrittenIsPassedOn(t *testing.T) {
	broken := source(func(ch chan<- prometheus.Metric) {
		ch <- prometheus.NewInvalidMetric(used, errors.New("out of paper"))
		ch <- prometheus.MustNewConstMetric(peak, prometheus.GaugeValue, 8, "web-0", "main")
	})
	registry := prometheus.NewRegistry()
	if err := registry.Register(broken); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err == nil || !strings.Contains(err.Error(), "out of paper") || len(families) != 1 || families[0].GetName() != "peak_bytes" {
		t.Errorf("got %v, %v", families, err)
	}
}
