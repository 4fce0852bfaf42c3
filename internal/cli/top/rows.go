// SPDX-License-Identifier: Apache-2.0

// Package top shows GPUs and the containers on them: live on a terminal, with bars
// against limits, or once as a table. The screen is a pure function of the
// overviews and of the screen's size.
package top

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
)

const (
	wholeTime = 100.0 // percent
	ppm       = 10_000
)

// row is a line of the screen: a GPU, or a container on it.
type row struct {
	node   string
	number string
	// who is the container, "" on the line of the GPU.
	who         string
	unhealthy   string
	memory      *uint64
	memoryLimit uint64
	time        *float64 // percent of the GPU's time
	timeLimit   float64  // the maximum, in percent
	timeText    string
	// back is the time for which the container's threads were throttled: a rate between two
	// overviews, or a total from a single overview. Without an account, back and refusals are
	// empty.
	back, refusals string
	processes      int
}

// rows returns the rows of all GPUs by node and index. The rows of a GPU's containers follow the
// row of the GPU, in the given order.
func rows(all []agentapi.Overview, order string, earlier map[string]agentapi.Overview) []row {
	var list []row
	for _, o := range all {
		rates := ratesOf(earlier[o.Node], o)
		for _, g := range o.GPUs {
			r := row{node: o.Node, number: g.Number(), unhealthy: g.Unhealthy, memory: g.MemoryUsedBytes, memoryLimit: g.MemoryBytes, time: g.Utilisation, timeLimit: wholeTime, timeText: show.TimeOfLimit(&agentapi.Share{Utilisation: g.Utilisation}), back: "-", refusals: "-"}
			on := holders(o, g, rates)
			for _, p := range o.Processes {
				if p.UUID == g.UUID {
					r.processes++
				}
			}
			sortRows(on, order)
			list = append(append(list, r), on...)
		}
	}
	return list
}

func holders(o agentapi.Overview, g agentapi.GPU, rates map[string]float64) []row {
	var on []row
	for _, c := range o.Containers {
		for _, s := range c.GPUs {
			if s.UUID != g.UUID {
				continue
			}
			r := row{
				node: o.Node, number: g.Number(), who: c.Namespace + "/" + c.Pod + "/" + c.Container,
				memory: s.MemoryUsedBytes, memoryLimit: s.MemoryLimitBytes,
				time: s.Utilisation, timeLimit: wholeTime, timeText: show.TimeOfLimit(&s), back: "-", refusals: "-", processes: s.Processes,
			}
			if s.ComputeLimitPPM > 0 {
				r.timeLimit = float64(max(s.ComputeLimitPPM, s.ComputeMaximumPPM)) / ppm
			}
			if s.Account != nil {
				r.back, r.refusals = show.Seconds(s.Account.ThrottledSeconds), strconv.FormatUint(s.Account.Refusals, 10)
				if rate, ok := rates[place(c, s)]; ok {
					r.back = fmt.Sprintf("%.0f %%", rate*100)
				}
			}
			on = append(on, r)
		}
	}
	return on
}

func place(c agentapi.Container, s agentapi.Share) string {
	return c.PodUID + "/" + c.Container + "/" + s.UUID
}

// ratesOf returns the throttled seconds of containers' threads for each second
// between two overviews.
func ratesOf(before, after agentapi.Overview) map[string]float64 {
	between := after.At.Sub(before.At).Seconds()
	if before.At.IsZero() || between <= 0 {
		return nil
	}
	had, rates := map[string]float64{}, map[string]float64{}
	for _, c := range before.Containers {
		for _, s := range c.GPUs {
			if s.Account != nil {
				had[place(c, s)] = s.Account.ThrottledSeconds
			}
		}
	}
	for _, c := range after.Containers {
		for _, s := range c.GPUs {
			if seconds, ok := had[place(c, s)]; ok && s.Account != nil {
				rates[place(c, s)] = max(s.Account.ThrottledSeconds-seconds, 0) / between
			}
		}
	}
	return rates
}

func sortRows(list []row, order string) {
	slices.SortStableFunc(list, func(a, b row) int {
		first := 0
		switch order {
		case show.ByMemory:
			first = cmp.Compare(of(b.memory), of(a.memory))
		case show.ByTime:
			first = cmp.Compare(of(b.time), of(a.time))
		}
		return cmp.Or(first, cmp.Compare(a.who, b.who))
	})
}

func of[N uint64 | float64](n *N) N {
	if n == nil {
		return 0
	}
	return *n
}

// everybody is the text in the container column of a GPU's line.
const everybody = "(all)"

func (r row) memoryText() string { return show.MemoryOfLimit(r.memory, r.memoryLimit) }

// Table formats the rows as plain text.
func Table(all []agentapi.Overview, order string, headers bool) string {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	if headers {
		fmt.Fprintln(t, "NODE\tGPU\tWHO\tMEMORY\tTIME\tTHROTTLED\tREFUSED\tPROCESSES\tHEALTH")
	}
	for _, r := range rows(all, order, nil) {
		health := "-"
		if r.who == "" {
			health = cmp.Or(r.unhealthy, "ok")
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", r.node, r.number, cmp.Or(r.who, everybody), r.memoryText(), r.timeText, r.back, r.refusals, r.processes, health)
	}
	_ = t.Flush() // writes to memory do not fail
	return b.String()
}
