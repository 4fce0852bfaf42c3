// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestPlan checks that each check has a unique name, and both plans contain every group.
func TestPlan(t *testing.T) {
	for _, quick := range []bool{false, true} {
		v := &run{opts: Options{Quick: quick}}
		seen := map[string]bool{}
		groups := map[string]bool{}
		for _, c := range v.plan() {
			name := c.group + ": " + c.name
			if seen[name] {
				t.Errorf("%s occurs twice", name)
			}
			seen[name], groups[c.group] = true, true
		}
		for _, group := range []string{groupDriver, groupMemory, groupCompute, groupPair, groupCapture, groupHang, groupLatency} {
			if !groups[group] {
				t.Errorf("quick %v: no check of %s", quick, group)
			}
		}
	}
}

// TestLoads checks that each pattern is measured with each length, and the pattern "one stream" at
// each limit. TestLoads also checks that a limit can throttle each graph.
func TestLoads(t *testing.T) {
	all := loads(false)
	for _, p := range patterns {
		for _, us := range lengths {
			n := 0
			for _, l := range all {
				if l.pattern.name == p.name && l.kernelUS == us {
					n++
				}
			}
			if want := map[bool]int{true: len(shares), false: 2}[p.name == oneStream.name]; n != want {
				t.Errorf("%s, %g µs: %d points, want %d", p.name, us, n, want)
			}
		}
	}
	for _, l := range all {
		if l.launch() > longestGraph*time.Microsecond {
			t.Errorf("%s: a launch takes %v", l, l.launch())
		}
	}
	if quick := loads(true); len(quick) != 11 {
		t.Errorf("%d points in a quick run, want 11: %v", len(quick), quick)
	}
}

// TestFiveMinutes checks that the measurements leave enough of the promised duration for the rest.
func TestFiveMinutes(t *testing.T) {
	for quick, most := range map[bool]time.Duration{false: 270 * time.Second, true: 55 * time.Second} {
		v := &run{opts: Options{Quick: quick}}
		var sum time.Duration
		add := func(tenants []load, times int) {
			var longest time.Duration
			for _, l := range tenants {
				warmup, measure := v.times(l)
				longest = max(longest, warmup+measure)
			}
			sum += time.Duration(times) * longest
		}
		for _, l := range loads(quick) {
			add([]load{l}, 1)
		}
		for _, c := range couples(quick) {
			add(c, 2)
		}
		sum += 2 * 4 * v.measure() // the latency, without limits and under them
		if sum > most {
			t.Errorf("quick %v: tenants take %v, want %v at most", quick, sum, most)
		}
	}
}

func TestChosenWays(t *testing.T) {
	for _, way := range quickWays {
		if !slices.Contains(ways, way) {
			t.Errorf("%s is no way", way)
		}
	}
}

func TestReports(t *testing.T) {
	r := Report{
		Card: "A <card>", Driver: "580.1", Facts: []Fact{{"clock drift", "+1.0 ppm"}},
		Rows: []Row{
			{Group: "compute", Name: "one stream", Verdict: Holds, Bound: "28.0 to 32.0 %", Figure: "30.00 %",
				Shares: []Share{{"one stream", 200, 201.5, 100, 30, 30}}},
			{Group: "memory", Name: "vmm", Verdict: NotTested, Why: "no  such\nfunction"},
			{Group: "hang", Name: "lazy", Verdict: DoesNotHold, Figure: "3 s", Why: "cuInit"},
		},
	}
	var table, page, text strings.Builder
	for _, err := range []error{WriteTable(&table, r), WriteHTML(&page, r), WriteJSON(&text, r)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ where, what string }{
		{table.String(), "1 hold, 1 do not hold, 1 not tested"},
		{table.String(), "no such function"},
		{table.String(), "3 s; cuInit"},
		{page.String(), "A &lt;card&gt;"},
		{page.String(), `cx="200.0" cy="300.0"`}, // the point on the curve
		{page.String(), `class="fails">does not hold`},
		{text.String(), `"gpu_time_percent": 30`},
	} {
		if !strings.Contains(c.where, c.what) {
			t.Errorf("%q is not in\n%s", c.what, c.where)
		}
	}
	if strings.Contains(page.String(), "http") {
		t.Error("the page refers to something elsewhere")
	}
	if strings.Count(text.String(), "\n") < 10 {
		t.Error(fmt.Sprint("the JSON is not indented: ", text.String()))
	}
}
