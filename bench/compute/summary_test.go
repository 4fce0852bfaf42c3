// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/bench/internal/report"
)

// alone returns a point of one container.
func alone(id string, change func(*Tenant)) Record {
	t := Tenant{KernelUS: 200, Pattern: "async", LaunchUS: 200, LimitPercent: 30, TargetPercent: 30,
		GPUTimePercent: known(30), MeteredPercent: known(30), ThroughputPercent: 30, P99WindowErrorPoints: known(1), FirstSecondPercent: known(32),
		Windows: 100}
	change(&t)
	return Record{ID: id, Workload: single, Tenant: &t}
}

// lending returns the point under the policy "share".
func lending(r Record) Record {
	r.Workload = share
	return r
}

func group(jainIndex, lostPercent float64, errors ...float64) Record {
	r := Record{ID: "group", Workload: pair, JainIndex: &jainIndex, LostPercent: &lostPercent}
	for _, e := range errors {
		r.Tenants = append(r.Tenants, Tenant{ErrorPoints: e})
	}
	return r
}

// crowded returns a point whose limits exceed the capacity.
func crowded(r Record) Record {
	for i := range r.Tenants {
		r.Tenants[i].LimitPercent = 50
	}
	r.CapacityPercent = known(90)
	return r
}

// on returns a point of a driver and a card.
func on(profile string, r Record) Record {
	r.Profile = profile
	return r
}

// latencyPoint returns a point whose p99 under time-slicing is 3 ms.
func latencyPoint(limited float64) Record {
	return Record{ID: "timed", Workload: latency,
		Latencies: &Latencies{TimeSlicing: Latency{P99MS: 3}, Limited: Latency{P99MS: limited}}}
}

func TestSummarize(t *testing.T) {
	unchanged := func(*Tenant) {}
	erring := func(points float64) func(*Tenant) { return func(t *Tenant) { t.ErrorPoints = points } }
	tests := []struct {
		name    string
		records []Record
		// want contains the verdicts in the order of the criteria: p for passed, F for failed, or -
		// for not measured.
		want string
	}{
		{"nothing", nil, "----------"},
		{"good", []Record{alone("a", unchanged)}, "pppppp----"},
		{"at the bounds", []Record{alone("a", erring(2)), alone("b", erring(0)), alone("c", erring(0)), alone("d", erring(0))}, "pppppp----"},
		{"one above", []Record{alone("a", erring(2.1)), alone("b", erring(0)), alone("c", erring(0)), alone("d", erring(0)), alone("e", erring(0))}, "Fppppp----"},
		{"one below", []Record{alone("a", erring(-2.1)), alone("b", erring(0)), alone("c", erring(0)), alone("d", erring(0)), alone("e", erring(0))}, "pFpppp----"},
		{"mean off", []Record{alone("a", erring(-0.6)), alone("b", erring(0.6))}, "ppFppp----"},
		{"no number", []Record{alone("a", erring(math.NaN()))}, "FFFppp----"},
		{"metered wrong", []Record{alone("a", func(t *Tenant) { t.MeteredPercent = known(28.9) })}, "pppFpp----"},
		{"windows", []Record{alone("a", func(t *Tenant) { t.P99WindowErrorPoints = known(5.1) })}, "ppppFp----"},
		{"windows disturbed by the machine", []Record{alone("a", func(t *Tenant) {
			t.P99WindowErrorPoints, t.WindowsDisturbed = known(5.1), 60
		})}, "pppp-p----"},
		{"first second", []Record{alone("a", func(t *Tenant) { t.FirstSecondPercent = known(41) })}, "pppppF----"},
		{"launch longer than a window's bound", []Record{alone("a", func(t *Tenant) {
			t.LaunchUS, t.KernelUS, t.P99WindowErrorPoints = 40000, 2000, known(30)
		})}, "pppp-p----"},
		{"launch longer than the first second's bound", []Record{alone("a", func(t *Tenant) {
			t.LaunchUS, t.KernelUS, t.FirstSecondPercent = 200000, 200000, known(45)
		})}, "pppp------"},
		{"idle by itself", []Record{alone("a", func(t *Tenant) {
			t.TargetPercent, t.P99WindowErrorPoints, t.FirstSecondPercent = 20, known(30), known(0)
		})}, "pppp------"},
		{"a real GPU", []Record{alone("a", func(t *Tenant) {
			t.GPUTimePercent, t.P99WindowErrorPoints, t.FirstSecondPercent = nil, nil, nil
		})}, "ppp-------"},
		{"latency", []Record{latencyPoint(3.05)}, "------p---"},
		{"latency worse", []Record{latencyPoint(2), latencyPoint(3.2)}, "------F---"},
		{"latency on a busy machine", []Record{{Workload: latency, Latencies: &Latencies{Alone: Latency{P99MS: 9}}}}, "----------"},
		{"group", []Record{group(0.996, 2.9, -0.5, 0.5)}, "ppp----p--"},
		{"group off", []Record{group(0.99, 3.1, -2.1, 2.5)}, "FFF----F--"},
		{"limits above the capacity", []Record{crowded(group(0.99, 3.1, -9, 1))}, "p---------"},
		{"a card that does not show the owner of GPU time", []Record{on("r580-h200+one-queue", group(0.99, 3.1, -9, 1))}, "p---------"},
		{"a share above the limit on such a card", []Record{on("r580-h200+one-queue", group(0.99, 3.1, -9, 2.1))}, "F---------"},
		{"lending", []Record{lending(alone("a", func(t *Tenant) { t.ThroughputPercent = 98 })), lending(group(0.9, 9, -2.9, 20))}, "--------pp"},
		{"not lending", []Record{lending(alone("a", func(t *Tenant) { t.ThroughputPercent = 96 })), lending(group(1, 0, -3.1, 2))}, "--------FF"},
	}
	for _, test := range tests {
		results := summarize(test.records)
		got := ""
		for _, r := range results {
			got += map[string]string{"pass": "p", "FAIL": "F", "not measured": "-"}[verdict(r.Pass)]
		}
		if got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
		if passed(results) == strings.Contains(test.want, "F") {
			t.Errorf("%s: passed is %v", test.name, passed(results))
		}
	}
}

func TestSummaryNamesTheWorst(t *testing.T) {
	records := []Record{alone("good", func(*Tenant) {}), alone("bad", func(t *Tenant) { t.ErrorPoints = -3 })}
	got := summarize(records)[2]
	if got.WorstID != "bad" || *got.Worst != 3 || *got.Mean != 1.5 || got.Judged != 2 {
		t.Errorf("%+v", got)
	}
	var table bytes.Buffer
	if err := writeSummary(&table, summarize(records)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"FAIL", "1.500   3.000  bad", "not measured"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in\n%s", want, table.String())
		}
	}
}

// TestJournal writes points, interrupts the run, and resumes the run.
func TestJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "points.jsonl")
	points := []Record{
		alone("a", func(t *Tenant) { t.GPUTimePercent = nil }),
		group(0.99, 1, 0.5, -0.5),
		latencyPoint(2),
	}
	for i, p := range points {
		var out bytes.Buffer
		j, before, err := openJournal(&out, path, i > 0)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(points[:i], before); i > 0 && diff != "" {
			t.Errorf("before point %d: %s", i, diff)
		}
		if err := j.write(heading{"compute", report.Conditions{}, 2, 10}); err != nil {
			t.Error(err)
		}
		if err := j.write(p); err != nil {
			t.Error(err)
		}
		if err := j.close(); err != nil {
			t.Error(err)
		}
		if lines := strings.Count(out.String(), "\n"); lines != 2 {
			t.Errorf("%d lines on the standard output", lines)
		}
	}
	got, err := readRecords(path)
	if diff := cmp.Diff(points, got); err != nil || diff != "" {
		t.Errorf("error %v: %s", err, diff)
	}
}

func TestReadRecords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "points.jsonl")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"id":"a","measured_s":1}` + "\n" + `{"id":"b"}` + "\n" + `{"id":"a","measured_s":2}` + "\n")
	got, err := readRecords(path)
	if err != nil || len(got) != 2 || got[0].MeasuredS != 2 {
		t.Errorf("%+v, error %v", got, err)
	}
	write("{\"id\":\"a\"}\n{\"id\":")
	if _, err := readRecords(path); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("error %v", err)
	}
}
