// Package top shows GPUs and who is on them: in the place of what was there on a
// terminal, with bars against limits, or once as a table. What is on the screen is
// a pure function of what is known and of the screen's size.
package top

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/nri-vgpu/nri-vgpu/pkg/ctl"
	"github.com/nri-vgpu/nri-vgpu/pkg/query"
)

const (
	wholeTime = 100.0 // percent
	ppm       = 10_000
)

// row is a line of the screen: a GPU, or a container on it.
type row struct {
	node  string
	index int
	// who is the container; empty on the line of the GPU itself.
	who         string
	unhealthy   string
	memory      *uint64
	memoryLimit uint64
	time        *float64 // percent of the GPU's
	timeLimit   float64
	// back is what its threads were held back: in all, or of each second where
	// two looks tell. Refusals has none either where no account is kept.
	back, refusals string
	processes      int
}

// rows are those of all GPUs by node and index, the containers below each in the
// order that is asked for.
func rows(all []query.Overview, order string, earlier map[string]query.Overview) []row {
	var list []row
	for _, o := range all {
		rates := ratesOf(earlier[o.Node], o)
		for _, g := range o.GPUs {
			r := row{node: o.Node, index: g.Index, unhealthy: g.Unhealthy, memory: g.MemoryUsedBytes, memoryLimit: g.MemoryBytes, time: g.Utilisation, timeLimit: wholeTime, back: "-", refusals: "-"}
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

func holders(o query.Overview, g query.GPU, rates map[string]float64) []row {
	var on []row
	for _, c := range o.Containers {
		for _, s := range c.GPUs {
			if s.UUID != g.UUID {
				continue
			}
			r := row{
				node: o.Node, index: g.Index, who: c.Namespace + "/" + c.Pod + "/" + c.Container,
				memory: s.MemoryUsedBytes, memoryLimit: s.MemoryLimitBytes,
				time: s.Utilisation, timeLimit: wholeTime, back: "-", refusals: "-", processes: s.Processes,
			}
			if s.ComputeLimitPPM > 0 {
				r.timeLimit = float64(s.ComputeLimitPPM) / ppm
			}
			if s.Account != nil {
				r.back, r.refusals = ctl.Seconds(s.Account.ThrottledSeconds), strconv.FormatUint(s.Account.Refusals, 10)
				if rate, ok := rates[place(c, s)]; ok {
					r.back = fmt.Sprintf("%.0f %%", rate*100)
				}
			}
			on = append(on, r)
		}
	}
	return on
}

func place(c query.Container, s query.Share) string {
	return c.PodUID + "/" + c.Container + "/" + s.UUID
}

// ratesOf is how many seconds containers' threads were held back in each second
// between two looks.
func ratesOf(before, after query.Overview) map[string]float64 {
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
		case ctl.ByMemory:
			first = cmp.Compare(of(b.memory), of(a.memory))
		case ctl.ByTime:
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

// everybody stands where a line is about the GPU itself.
const everybody = "(all)"

func (r row) memoryText() string { return ctl.MemoryOfLimit(r.memory, r.memoryLimit) }

func (r row) timeText() string {
	text := "-"
	if r.time != nil {
		text = strconv.FormatFloat(*r.time, 'f', 1, 64)
	}
	if r.timeLimit == wholeTime {
		return text + " %"
	}
	return fmt.Sprintf("%s/%g %%", text, r.timeLimit)
}

// Table is the plain one.
func Table(all []query.Overview, order string, headers bool) string {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	if headers {
		fmt.Fprintln(t, "NODE\tGPU\tWHO\tMEMORY\tTIME\tHELD BACK\tREFUSED\tPROCESSES\tHEALTH")
	}
	for _, r := range rows(all, order, nil) {
		health := "-"
		if r.who == "" {
			health = cmp.Or(r.unhealthy, "ok")
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", r.node, r.index, cmp.Or(r.who, everybody), r.memoryText(), r.timeText(), r.back, r.refusals, r.processes, health)
	}
	_ = t.Flush() // into memory
	return b.String()
}
