// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"math"
	"text/tabwriter"
)

// Result is the result of a criterion.
type Result struct {
	Criterion string `json:"criterion"`
	// Judged is the number of judged points, and NotJudged is the number of excluded points.
	// Criteria for short times exclude points with longer launches, because a launch cannot be
	// interrupted. These criteria also exclude points whose work does not reach the limit, because
	// the program itself is unsteady. Other criteria exclude points for which [Record.why] returns
	// a reason, and latencies that stalls disturbed.
	Judged    int      `json:"judged"`
	NotJudged int      `json:"not_judged"`
	Bound     float64  `json:"bound"`
	Mean      *float64 `json:"mean"`
	Worst     *float64 `json:"worst"`
	WorstID   string   `json:"worst_id"`
	Pass      *bool    `json:"pass"` // null if no point was measured
}

// latencyNoise is the latency that the machine's timers add, in ms. A sleeping program wakes up 50
// µs late, and then waits for a processor.
const latencyNoise = 0.1

// value is a value of a point that a criterion judges.
type value struct {
	id string
	v  float64
}

// criterion is a rule over all points.
type criterion struct {
	text  string
	bound float64
	least bool // the bound is the least allowed value instead of the greatest allowed value
	mean  bool // the bound applies to the mean instead of each point
	// of returns the values of one point, and the number of values that the criterion cannot judge.
	of func(Record) (values []float64, excluded int)
}

// criteria are the criteria of acceptance of compute limits.
var criteria = []criterion{
	{text: "all: share - target, points", bound: 2, of: above},
	{text: "all: target - share, points", bound: 2, of: below},
	{text: "all: mean of |share - target|, points", bound: 0.5, mean: true, of: deviations},
	{text: "all: |metered - share|, points", bound: 1, of: metering},
	{text: "alone: error of 100 ms windows, 99th percentile, kernels to 2 ms, points", bound: 5, of: windowErrors},
	{text: "alone: error of the first second, points", bound: 10, of: firstSecond},
	{text: "latency: p99 beside a neighbour less that by time-slicing, ms", bound: latencyNoise, of: latencyExcess},
	{text: "side by side: allowed time lost, percent", bound: 3, of: groupLost},
	{text: "policy share, alone: throughput, percent of unlimited", bound: 97, least: true, of: shareAlone},
	{text: "policy share, side by side: guarantee - share, points", bound: 3, of: shareError},
}

// limited reports whether the criteria for limits apply to the point.
func (r Record) limited() bool { return r.Workload != share && r.Workload != latency }

// above returns the excess of containers' GPU times over their targets.
func above(r Record) ([]float64, int) {
	if !r.limited() {
		return nil, 0
	}
	return each(r, func(t Tenant) float64 { return t.ErrorPoints }), 0
}

// below returns the deficit of containers' GPU times below their targets.
func below(r Record) ([]float64, int) {
	if !r.limited() {
		return nil, 0
	}
	if r.why() != "" {
		return nil, 1
	}
	return each(r, func(t Tenant) float64 { return -t.ErrorPoints }), 0
}

// deviations returns the absolute differences of containers' GPU times from their
// targets.
func deviations(r Record) ([]float64, int) {
	if !r.limited() {
		return nil, 0
	}
	if r.why() != "" {
		return nil, 1
	}
	return each(r, func(t Tenant) float64 { return math.Abs(t.ErrorPoints) }), 0
}

// metering returns the differences between charged time and GPU time.
func metering(r Record) ([]float64, int) {
	if !r.limited() {
		return nil, 0
	}
	if r.why() != "" {
		return nil, 1
	}
	var values []float64
	for _, t := range r.all() {
		if t.MeteredPercent != nil && t.GPUTimePercent != nil {
			values = append(values, math.Abs(*t.MeteredPercent-*t.GPUTimePercent))
		}
	}
	return values, 0
}

// each returns a value for each of a point's containers.
func each(r Record, of func(Tenant) float64) []float64 {
	var values []float64
	for _, t := range r.all() {
		values = append(values, of(t))
	}
	return values
}

// windowLaunchUS bounds the launches of points whose windows are judged. With a longer launch, a
// window of 100 ms cannot keep within 5 points.
const (
	windowKernelUS = 2000
	windowLaunchUS = 5000
	// With fewer undisturbed windows the 99th percentile is meaningless.
	fewestWindows = 50
)

func windowErrors(r Record) ([]float64, int) {
	if r.Workload != single || r.P99WindowErrorPoints == nil || r.KernelUS > windowKernelUS {
		return nil, 0
	}
	if r.LaunchUS > windowLaunchUS || r.idles() || r.Windows-r.WindowsDisturbed < fewestWindows {
		return nil, 1
	}
	return []float64{*r.P99WindowErrorPoints}, 0
}

// secondLaunchUS bounds the launches of points whose first second is judged. With a longer launch,
// a second cannot keep within 10 points.
const secondLaunchUS = 100000

func firstSecond(r Record) ([]float64, int) {
	if r.Workload != single || r.FirstSecondPercent == nil {
		return nil, 0
	}
	if r.LaunchUS > secondLaunchUS || r.idles() {
		return nil, 1
	}
	return []float64{math.Abs(*r.FirstSecondPercent - r.TargetPercent)}, 0
}

// quietP99MS bounds the p99 of the kernel that runs alone. If the p99 exceeds this bound, the
// machine's processors are too busy to measure latencies.
const quietP99MS = 1.5 * periodicKernelUS / 1000

func latencyExcess(r Record) ([]float64, int) {
	if r.Latencies == nil {
		return nil, 0
	}
	if r.Alone.P99MS > quietP99MS {
		return nil, 1
	}
	return []float64{r.Limited.P99MS - r.TimeSlicing.P99MS}, 0
}

func isGroup(r Record) bool { return r.Workload == pair || r.Workload == triple }

func groupLost(r Record) ([]float64, int) {
	if !isGroup(r) || r.LostPercent == nil {
		return nil, 0
	}
	if r.why() != "" {
		return nil, 1
	}
	return []float64{*r.LostPercent}, 0
}

func shareAlone(r Record) ([]float64, int) {
	if r.Workload != share || r.Tenant == nil {
		return nil, 0
	}
	return []float64{r.ThroughputPercent}, 0
}

func shareError(r Record) ([]float64, int) {
	if r.Workload != share || r.Tenant != nil {
		return nil, 0
	}
	if r.why() != "" {
		return nil, 1
	}
	return each(r, func(t Tenant) float64 { return -t.ErrorPoints }), 0
}

// summarize applies all criteria.
func summarize(records []Record) []Result {
	var results []Result
	for _, c := range criteria {
		results = append(results, c.apply(records))
	}
	return results
}

func (c criterion) apply(records []Record) Result {
	result := Result{Criterion: c.text, Bound: c.bound}
	var values []value
	for _, r := range records {
		of, excluded := c.of(r)
		result.NotJudged += excluded
		for _, v := range of {
			values = append(values, value{r.ID, v})
		}
	}
	result.Judged = len(values)
	if len(values) == 0 {
		return result
	}
	worst, sum := values[0], 0.0
	for _, v := range values {
		sum += v.v
		if c.worse(v.v, worst.v) {
			worst = v
		}
	}
	mean := sum / float64(len(values))
	judged := worst.v
	if c.mean {
		judged = mean
	}
	pass := !c.worse(judged, c.bound)
	result.Mean, result.Worst, result.WorstID, result.Pass = known(mean), known(worst.v), worst.id, &pass
	return result
}

// worse reports whether a is worse than b. NaN is the worst value.
func (c criterion) worse(a, b float64) bool {
	if math.IsNaN(a) {
		return true
	}
	if c.least {
		return a < b
	}
	return a > b
}

// passed reports whether all measured criteria hold.
func passed(results []Result) bool {
	for _, r := range results {
		if r.Pass != nil && !*r.Pass {
			return false
		}
	}
	return true
}

// writeSummary writes results as a table.
func writeSummary(w io.Writer, results []Result) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\tCRITERION\tBOUND\tMEAN\tWORST\tAT\tJUDGED\tNOT JUDGED")
	for _, r := range results {
		fmt.Fprintf(table, "%s\t%s\t%g\t%s\t%s\t%s\t%d\t%d\n", verdict(r.Pass), r.Criterion, r.Bound,
			decimal(r.Mean), decimal(r.Worst), r.WorstID, r.Judged, r.NotJudged)
	}
	return table.Flush()
}

func verdict(pass *bool) string {
	switch {
	case pass == nil:
		return "not measured"
	case *pass:
		return "pass"
	}
	return "FAIL"
}

func decimal(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.3f", *v)
}
