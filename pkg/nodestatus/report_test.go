// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
)

func TestAdvance(t *testing.T) {
	now := time.Now()
	earlier := now.Add(-time.Hour)
	report := func(heartbeat time.Time) nodereport.Report { return nodereport.Report{Heartbeat: heartbeat} }
	held := func(heartbeat, alive time.Time) Observation {
		r := report(heartbeat)
		return Observation{Report: &r, Alive: alive}
	}
	tests := []struct {
		name      string
		last      Observation
		heartbeat time.Time
		want      time.Duration // age
	}{
		{"first, fresh", Observation{}, now, 0},
		{"first, old", Observation{}, now.Add(-time.Minute), time.Minute},
		{"first, from the future", Observation{}, now.Add(time.Minute), time.Minute},
		{"moved on", held(earlier, earlier), earlier.Add(time.Second), 0},
		{"moved back with the wall clock", held(now, earlier), earlier, 0},
		{"written again without a new heartbeat", held(now, earlier), now, time.Hour},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := advance(tt.last, report(tt.heartbeat), now).Age(now)
			if (got - tt.want).Abs() > time.Millisecond {
				t.Errorf("age is %s, want %s", got, tt.want)
			}
		})
	}
}

func TestReportReader(t *testing.T) {
	path := filepath.Join(t.TempDir(), nodereport.FileName)
	reader := reportReader{path: path}
	now := time.Now()

	if o, err := reader.observe(now); err != nil || o.Report != nil {
		t.Fatalf("without a file: %+v, %v", o, err)
	}
	write := func(heartbeat time.Time) {
		t.Helper()
		if err := nodereport.Write(path, nodereport.Report{Heartbeat: heartbeat}); err != nil {
			t.Fatal(err)
		}
	}
	write(now)
	if o, err := reader.observe(now); err != nil || o.Report == nil {
		t.Fatalf("with a file: %+v, %v", o, err)
	}

	later := now.Add(10 * time.Second)
	if o, _ := reader.observe(later); o.Age(later) < 9*time.Second {
		t.Errorf("an unchanged file made the agent live: age %s", o.Age(later))
	}
	write(later)
	if !reader.changed() {
		t.Error("a new report does not count as changed")
	}
	if o, _ := reader.observe(later); o.Age(later) != 0 {
		t.Errorf("a new heartbeat was not seen: age %s", o.Age(later))
	}

	if err := os.WriteFile(path, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	o, err := reader.observe(later)
	if err == nil || o.Report == nil {
		t.Errorf("a corrupt report must be an error and keep the last one: %+v, %v", o, err)
	}
	if reader.changed() {
		t.Error("an unchanged file counts as changed")
	}
	if _, again := reader.observe(later); again == nil || again.Error() != err.Error() {
		t.Errorf("the same corrupt report is first %v, and then %v", err, again)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if o, err := reader.observe(later); err != nil || o.Report == nil {
		t.Errorf("a removed file must keep the last report until it is stale: %+v, %v", o, err)
	}
}
