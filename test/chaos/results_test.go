// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"sync"
	"time"
)

// results are the measurements beside hostile tenants. Each result is the worst of all calms.
type results struct {
	mu sync.Mutex
	measured
}

type measured struct {
	Tenants         int     `json:"hostile_tenants"`
	RunPercent      float64 `json:"run_percent"`
	RunInodePercent float64 `json:"run_inodes_percent"`
	MetricsSeconds  float64 `json:"metrics_s"`
	Quiet           summed  `json:"quiet"`
	Harmless        summed  `json:"harmless"`
	Hostile         summed  `json:"hostile"`
	// Growth is the largest growth after attacks, by program.
	Growth map[string]growth `json:"growth"`
}

func (r *results) all() measured {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.measured
}

// summed contains the figures of several parts.
type summed struct {
	Starts    int     `json:"starts"`
	Median    float64 `json:"start_median_s"` // of the part with the largest median
	Worst     float64 `json:"start_worst_s"`
	Requests  int     `json:"requests"`
	Refused   int     `json:"requests_refused"`
	Handler   float64 `json:"handler_worst_s"`
	HandlerOf string  `json:"handler_worst"`
}

// growth is the amount by which a program has grown.
type growth struct {
	MiB         int64 `json:"mib"`
	Descriptors int   `json:"descriptors"`
	Goroutines  int   `json:"goroutines,omitempty"`
}

func (s *summed) add(p part) {
	s.Starts += len(p.starts)
	s.Median = max(s.Median, round2(p.median().Seconds()))
	s.Worst = max(s.Worst, round2(p.worst().Seconds()))
	s.Requests += len(p.handled)
	for _, one := range p.handled {
		if one.refused {
			s.Refused++
		}
		if took := float64(one.took.Round(time.Millisecond)) / float64(time.Second); took > s.Handler {
			s.Handler, s.HandlerOf = took, one.request+" of "+one.where
		}
	}
}

// print prints the measurements beside hostile tenants.
func (m *measured) print() {
	if m.Tenants == 0 {
		return
	}
	fmt.Printf("\n%d hostile tenants: /run at most %.1f %% full, its inodes %.1f %%; metrics within %v s\n",
		m.Tenants, m.RunPercent, m.RunInodePercent, m.MetricsSeconds)
	for _, part := range []struct {
		name string
		summed
	}{{"quiet", m.Quiet}, {"harmless", m.Harmless}, {"hostile", m.Hostile}} {
		fmt.Printf("%s: %d starts, median %v s, worst %v s; %d requests, %d refused, the slowest %v s (%s)\n", part.name,
			part.Starts, part.Median, part.Worst, part.Requests, part.Refused, part.Handler, part.HandlerOf)
	}
}

// see keeps the largest value.
func (r *results) see(most *float64, value float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*most = max(*most, round2(value))
}

func (r *results) growth(name string, before, after look) {
	if r.Growth == nil {
		r.Growth = map[string]growth{}
	}
	most := r.Growth[name]
	r.Growth[name] = growth{
		MiB:         max(most.MiB, (after.rss-before.rss)/mib),
		Descriptors: max(most.Descriptors, after.descriptors-before.descriptors),
		Goroutines:  max(most.Goroutines, after.goroutines-before.goroutines),
	}
}
