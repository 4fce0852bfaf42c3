package main

import (
	"testing"
	"time"
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
	fast := creations{Which: "all", P99ms: 2}
	with := func(change func(*creations, *idleness)) (creations, idleness) {
		c, i := fast, good
		change(&c, &i)
		return c, i
	}
	for name, tt := range map[string]struct {
		change func(*creations, *idleness)
		broken int
	}{
		"all holds":                 {func(*creations, *idleness) {}, 0},
		"slow":                      {func(c *creations, _ *idleness) { c.P99ms = 2.001 }, 1},
		"large":                     {func(_ *creations, i *idleness) { i.ResidentMiB = 60.1 }, 1},
		"busy":                      {func(_ *creations, i *idleness) { i.CPUPercent = 0.51 }, 1},
		"writes":                    {func(_ *creations, i *idleness) { i.Writes = 1 }, 1},
		"the patcher has less room": {func(_ *creations, i *idleness) { i.Program, i.ResidentMiB = patcherName, 31 }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			c, i := with(tt.change)
			broken := 0
			for _, v := range judge([]creations{c}, []idleness{i}) {
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
