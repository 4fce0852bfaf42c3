// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
)

func TestQuantile(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(i + 1)
	}
	for _, tt := range []struct {
		values []time.Duration
		q      float64
		want   time.Duration
	}{
		{hundred, 0.5, 50},
		{hundred, 0.99, 99},
		{hundred, 1, 100},
		{hundred[:1], 0.99, 1},
		{hundred[:2], 0.5, 1},
	} {
		if got := quantile(tt.values, tt.q); got != tt.want {
			t.Errorf("quantile %v of %d values is %d, want %d", tt.q, len(tt.values), got, tt.want)
		}
	}
}

func TestJudge(t *testing.T) {
	good := idleness{Program: agentName, CPUPercent: 0.5, ResidentMiB: 60}
	fast := handled{Which: "all", SlowPercent: 1}
	with := func(change func(*handled, *idleness)) (handled, idleness) {
		c, i := fast, good
		change(&c, &i)
		return c, i
	}
	for name, tt := range map[string]struct {
		change func(*handled, *idleness)
		broken int
	}{
		"all holds":                     {func(*handled, *idleness) {}, 0},
		"slow":                          {func(c *handled, _ *idleness) { c.SlowPercent = 1.01 }, 1},
		"large":                         {func(_ *handled, i *idleness) { i.ResidentMiB = 60.1 }, 1},
		"busy":                          {func(_ *handled, i *idleness) { i.CPUPercent = 0.51 }, 1},
		"writes":                        {func(_ *handled, i *idleness) { i.Writes = 1 }, 1},
		"the patcher has a lower bound": {func(_ *handled, i *idleness) { i.Program, i.ResidentMiB = patcherName, 31 }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			c, i := with(tt.change)
			broken := 0
			for _, v := range judge([]handled{c}, []idleness{i}) {
				if !v.Holds {
					broken++
				}
			}
			if broken != tt.broken {
				t.Errorf("%d promises are broken, want %d", broken, tt.broken)
			}
		})
	}
}

func TestNewHandled(t *testing.T) {
	bucket := func(bound float64, count uint64) *dto.Bucket {
		return &dto.Bucket{UpperBound: &bound, CumulativeCount: &count}
	}
	histogram := func(sum float64, count uint64, buckets ...*dto.Bucket) *dto.Histogram {
		return &dto.Histogram{SampleSum: &sum, SampleCount: &count, Bucket: buckets}
	}
	granted := histogram(0.1, 50, bucket(.001, 10), bucket(.002, 48), bucket(.005, 50))
	withheld := histogram(0.1, 150, bucket(.001, 140), bucket(.002, 149), bucket(.005, 150))
	got, err := newHandled("all", []*dto.Histogram{granted, withheld})
	if want := (handled{"handler", "all", 200, 1, 1.5}); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for name, h := range map[string]*dto.Histogram{
		"no such bucket": histogram(0.1, 50, bucket(.001, 50)),
		"never called":   histogram(0, 0, bucket(.002, 0)),
	} {
		if got, err := newHandled("all", []*dto.Histogram{h}); err == nil {
			t.Errorf("%s: %+v, want an error", name, got)
		}
	}
}
