// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestAverage(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(1_000_000).Add(time.Duration(ms) * time.Millisecond) }
	// steps returns samples of one process, a period of 100 ms each.
	steps := func(pid int, percents ...uint32) (samples []Sample) {
		for k, p := range percents {
			if p > 0 { // the driver returns no sample of a period without work
				samples = append(samples, Sample{PID: pid, At: at(100 * k), Percent: p})
			}
		}
		return samples
	}
	tests := []struct {
		name    string
		samples []Sample
		want    map[int]float64
	}{
		{"none", nil, map[int]float64{}},
		{"always busy", steps(1, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30), map[int]float64{1: 30}},
		{"busy for two periods", steps(1, 0, 0, 50, 50), map[int]float64{1: 10}},
		{"beside a process with a known period", append(steps(1, 80, 80), steps(2, 0, 0, 60)...), map[int]float64{1: 16, 2: 6}},
		{"one sample for each", []Sample{{PID: 1, At: at(10), Percent: 70}, {PID: 2, At: at(12), Percent: 20}}, map[int]float64{1: 70, 2: 20}},
		{"one more than periods", steps(1, 50, 50, 50, 50, 50, 50, 50, 50, 50, 50, 50), map[int]float64{1: 50}},
		{"no measurement", []Sample{{PID: 1, At: at(0), Percent: 4_000_000}, {PID: 2, At: at(0), Percent: 20}}, map[int]float64{2: 20}},
		{"twice at one time", []Sample{{PID: 1, At: at(0), Percent: 20}, {PID: 1, At: at(0), Percent: 20}}, map[int]float64{1: 20}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, average(tt.samples, time.Second)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// silent is a driver that lists processes and measures nothing.
type silent struct{ script }

func (silent) Loads(time.Time) (map[string][]Load, error)     { return nil, nil }
func (silent) Samples(time.Time) (map[string][]Sample, error) { return map[string][]Sample{}, nil }

func TestActivity(t *testing.T) {
	forty := 40.0
	gpus := script(func() ([]GPU, error) { return two(), nil })
	for name, tt := range map[string]struct {
		driver Driver
		want   *float64
	}{
		"measured":   {gpus, &forty},
		"unmeasured": {silent{gpus}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := NewInventory(tt.driver, 0).Activity(t.Context(), time.Second)
			if err != nil {
				t.Fatal(err)
			}
			want := map[string][]Activity{"GPU-a": {{Process{PID: 1}, tt.want}}}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
