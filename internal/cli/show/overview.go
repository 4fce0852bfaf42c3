// SPDX-License-Identifier: Apache-2.0

package show

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/loop"
)

// Source returns overviews of one or more nodes.
type Source interface {
	// Overviews returns the overview of each node that answers. The error lists the other nodes.
	Overviews(ctx context.Context) ([]agentapi.Overview, error)
	// Follow calls report for each node about once a second until ctx ends. If the node answers,
	// report gets the overview; otherwise, report gets the error. Follow calls report concurrently.
	Follow(ctx context.Context, report func(node string, o agentapi.Overview, err error))
}

// Local is the agent behind a socket of a node or of a container. In a container Local
// returns only the container's pod.
type Local struct{ Socket string }

// Overviews returns the overview of the agent.
func (l Local) Overviews(ctx context.Context) ([]agentapi.Overview, error) {
	var o agentapi.Overview
	if err := (agentapi.Client{Socket: l.Socket}).Ask(ctx, agentapi.All, &o); err != nil {
		return nil, err
	}
	return []agentapi.Overview{o}, nil
}

// Follow calls report with the overview of the agent.
func (l Local) Follow(ctx context.Context, report func(string, agentapi.Overview, error)) {
	node := ""
	for {
		all, err := l.Overviews(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			report(node, agentapi.Overview{}, err)
		default:
			node = all[0].Node
			report(node, all[0], nil)
		}
		if !loop.Sleep(ctx, watchInterval) {
			return
		}
	}
}

// Filter selects parts of overviews. An empty field selects everything.
type Filter struct {
	Nodes     []string
	Namespace string
	// Names are names of pods.
	Names []string
	// Selected reports whether a label selector matches the pod. Selected may be nil.
	Selected func(namespace, pod string) bool
	// Inside excludes processes outside pods.
	Inside bool
}

// Has reports whether the filter selects a pod.
func (f Filter) Has(namespace, pod string) bool {
	return (f.Namespace == "" || f.Namespace == namespace) &&
		(len(f.Names) == 0 || slices.Contains(f.Names, pod)) &&
		(f.Selected == nil || f.Selected(namespace, pod))
}

// Apply returns the selected parts of overviews. Apply keeps all GPUs of the selected
// nodes.
func (f Filter) Apply(all []agentapi.Overview) []agentapi.Overview {
	var chosen []agentapi.Overview
	for _, o := range all {
		if len(f.Nodes) > 0 && !slices.Contains(f.Nodes, o.Node) {
			continue
		}
		o.Containers = slices.DeleteFunc(slices.Clone(o.Containers), func(c agentapi.Container) bool { return !f.Has(c.Namespace, c.Pod) })
		o.Processes = slices.DeleteFunc(slices.Clone(o.Processes), func(p agentapi.Process) bool {
			return !f.Has(p.Namespace, p.Pod) || f.Inside && p.Pod == ""
		})
		chosen = append(chosen, o)
	}
	slices.SortFunc(chosen, func(a, b agentapi.Overview) int { return cmp.Compare(a.Node, b.Node) })
	return chosen
}

// These constants are the sort orders of lists.
const (
	ByName   = "name"
	ByMemory = "memory"
	ByTime   = "time"
)

// Orders are all sort orders.
var Orders = []string{ByName, ByMemory, ByTime}

// Listing describes the output of a list.
type Listing struct {
	// Format is one of ViewFormats. Order is one of Orders.
	Format, Order string
	NoHeaders     bool
	Out           io.Writer
}

// Check returns an error if the format or the order is invalid.
func (l Listing) Check() error {
	if err := CheckFormat(l.Format, ViewFormats); err != nil {
		return err
	}
	if !slices.Contains(Orders, l.Order) {
		return fmt.Errorf("--sort-by is %q; allowed: %s", l.Order, strings.Join(Orders, ", "))
	}
	return nil
}

func list[T any](l Listing, v view[T], items []T) error {
	if len(items) == 0 && l.NoHeaders && (l.Format == FormatTable || l.Format == FormatWide) {
		return nil
	}
	w := &writer[T]{view: v, format: l.Format, out: l.Out, titled: l.NoHeaders}
	return w.write(items)
}

// greater compares amounts for descending order. Unknown amounts come last.
func greater[N cmp.Ordered](a, b *N) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return cmp.Compare(*b, *a)
}

// order sorts items, which are already sorted by name.
func order[T any](items []T, by string, memory func(T) *uint64, share func(T) *float64) {
	switch by {
	case ByMemory:
		slices.SortStableFunc(items, func(a, b T) int { return greater(memory(a), memory(b)) })
	case ByTime:
		slices.SortStableFunc(items, func(a, b T) int { return greater(share(a), share(b)) })
	}
}

// GPUs writes the GPUs.
func (l Listing) GPUs(all []agentapi.Overview) error {
	items := []agentapi.GPU{}
	for _, o := range all {
		items = append(items, o.GPUs...)
	}
	order(items, l.Order, func(g agentapi.GPU) *uint64 { return g.MemoryUsedBytes }, func(g agentapi.GPU) *float64 { return g.Utilisation })
	return list(l, gpuView, items)
}

// Processes writes the processes.
func (l Listing) Processes(all []agentapi.Overview) error {
	items := []agentapi.Process{}
	numbers := map[string]string{}
	for _, o := range all {
		items = append(items, o.Processes...)
		for _, g := range o.GPUs {
			numbers[g.UUID] = g.Number()
		}
	}
	slices.SortStableFunc(items, func(a, b agentapi.Process) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod))
	})
	order(items, l.Order, func(p agentapi.Process) *uint64 { return p.MemoryUsedBytes }, func(p agentapi.Process) *float64 { return p.Utilisation })
	return list(l, psView(numbers), items)
}

// PodEntry is a container that holds GPUs, or a pod that waits for them.
type PodEntry struct {
	agentapi.Container
	// Status is the state of the pod in one word. Status is empty if only the agent was
	// queried.
	Status string `json:"status,omitempty"`
}

// Pods writes the containers and their parts of GPUs.
func (l Listing) Pods(items []PodEntry) error {
	slices.SortStableFunc(items, func(a, b PodEntry) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod))
	})
	order(items, l.Order,
		func(e PodEntry) *uint64 { return most(e.GPUs, usedMemory) },
		func(e PodEntry) *float64 { return most(e.GPUs, usedTime) })
	if l.Format == FormatJSON || l.Format == FormatYAML {
		return list(l, view[PodEntry]{}, items)
	}
	rows := []podRow{}
	for _, e := range items {
		if len(e.GPUs) == 0 {
			rows = append(rows, podRow{PodEntry: e})
		}
		for i := range e.GPUs {
			rows = append(rows, podRow{e, &e.GPUs[i]})
		}
	}
	order(rows, l.Order,
		func(r podRow) *uint64 { return part(r, usedMemory) },
		func(r podRow) *float64 { return part(r, usedTime) })
	return list(l, podView, rows)
}

// Entries returns the containers of overviews.
func Entries(all []agentapi.Overview) []PodEntry {
	items := []PodEntry{}
	for _, o := range all {
		for _, c := range o.Containers {
			items = append(items, PodEntry{Container: c})
		}
	}
	return items
}

// podRow is a container on one GPU, or a container without a GPU.
type podRow struct {
	PodEntry
	share *agentapi.Share
}

func usedMemory(s *agentapi.Share) *uint64 { return s.MemoryUsedBytes }
func usedTime(s *agentapi.Share) *float64  { return s.Utilisation }

// most returns the largest known amount of a container's parts of GPUs, or nil.
func most[N cmp.Ordered](parts []agentapi.Share, of func(*agentapi.Share) *N) (found *N) {
	for i := range parts {
		if amount := of(&parts[i]); greater(amount, found) < 0 {
			found = amount
		}
	}
	return found
}

func part[T any](r podRow, of func(*agentapi.Share) *T) *T {
	if r.share == nil {
		return nil
	}
	return of(r.share)
}

// ofShare returns the text of a column that is "-" without a GPU.
func ofShare(text func(*agentapi.Share) string) func(podRow) string {
	return func(r podRow) string {
		if r.share == nil {
			return "-"
		}
		return text(r.share)
	}
}

// ofAccount returns the text of a column that is "-" without a GPU or without an
// account.
func ofAccount(text func(*agentapi.Account) string) func(podRow) string {
	return ofShare(func(s *agentapi.Share) string {
		if s.Account == nil {
			return "-"
		}
		return text(s.Account)
	})
}

var podView = view[podRow]{
	columns: []column[podRow]{
		{title: "NAMESPACE", text: func(r podRow) string { return r.Namespace }},
		{title: "POD", text: func(r podRow) string { return r.Pod }},
		{title: "CONTAINER", text: func(r podRow) string { return cmp.Or(r.Container.Container, "-") }},
		{title: "NODE", text: func(r podRow) string { return cmp.Or(r.Node, "-") }},
		{title: "GPU", text: ofShare(func(s *agentapi.Share) string { return s.Number() })},
		{title: "UUID", text: ofShare(func(s *agentapi.Share) string { return s.UUID }), wide: true},
		{title: "MEMORY", text: ofShare(func(s *agentapi.Share) string { return ofLimit(s.MemoryUsedBytes, s.MemoryLimitBytes) })},
		{title: "TIME", text: ofShare(TimeOfLimit)},
		{title: "THROTTLED", text: ofAccount(func(a *agentapi.Account) string { return Seconds(a.ThrottledSeconds) })},
		{title: "REFUSED", text: ofAccount(func(a *agentapi.Account) string { return strconv.FormatUint(a.Refusals, 10) })},
		{title: "GPU TIME", text: ofAccount(func(a *agentapi.Account) string { return Seconds(a.BusySeconds) }), wide: true},
		{title: "LAUNCHES", text: ofAccount(func(a *agentapi.Account) string { return strconv.FormatUint(a.Launches, 10) }), wide: true},
		{title: "PROCESSES", text: ofShare(func(s *agentapi.Share) string { return strconv.Itoa(s.Processes) })},
		{title: "REQUESTS", text: func(r podRow) string { return Requested(r.Requests) }, wide: true},
		{title: "STATUS", text: func(r podRow) string { return cmp.Or(r.Status, "-") }},
	},
	name: func(r podRow) string { return "pod/" + r.Pod },
	none: "No container has a GPU here.",
}

var gpuView = view[agentapi.GPU]{
	columns: []column[agentapi.GPU]{
		{title: "NODE", text: func(g agentapi.GPU) string { return g.Node }},
		{title: "GPU", text: func(g agentapi.GPU) string { return g.Number() }},
		{title: "UUID", text: func(g agentapi.GPU) string { return g.UUID }, wide: true},
		{title: "MIG OF", text: func(g agentapi.GPU) string { return cmp.Or(g.MIG.Parent, "-") }, wide: true},
		{title: "NAME", text: func(g agentapi.GPU) string { return cmp.Or(g.Name, "-") }},
		{title: "MEMORY", text: func(g agentapi.GPU) string { return ofLimit(g.MemoryUsedBytes, g.MemoryBytes) }},
		{title: "ALLOCATED", text: ofRoom(func(r *agentapi.Room) string {
			given := r.MemoryBytes - r.FreeMemoryBytes
			return ofLimit(&given, r.MemoryBytes)
		})},
		{title: "TIME", text: func(g agentapi.GPU) string { return percentOr(g.Utilisation) }},
		{title: "ALLOCATED", text: ofRoom(func(r *agentapi.Room) string { return Percent(wholePPM - r.FreeComputePPM) })},
		{title: "CONTAINERS", text: ofRoom(func(r *agentapi.Room) string { return strconv.Itoa(r.Holders) })},
		{title: "SLOTS LEFT", text: ofRoom(func(r *agentapi.Room) string { return strconv.Itoa(r.FreeSlots) }), wide: true},
		{title: "SHARED BY", text: ofRoom(sharedBy), wide: true},
		{title: "HEALTH", text: func(g agentapi.GPU) string { return cmp.Or(g.Unhealthy, "ok") }},
	},
	name: func(g agentapi.GPU) string { return "gpu/" + g.UUID },
	none: "There is no GPU here.",
}

// wholePPM is all of a GPU's time, in parts per million.
const wholePPM = 1_000_000

func ofRoom(text func(*agentapi.Room) string) func(agentapi.GPU) string {
	return func(g agentapi.GPU) string {
		if g.Room == nil {
			return "-"
		}
		return text(g.Room)
	}
}

func sharedBy(r *agentapi.Room) string {
	switch {
	case r.Exclusive:
		return "nobody"
	case r.MPS:
		return "mps"
	default:
		return "time"
	}
}

func psView(numbers map[string]string) view[agentapi.Process] {
	gpu := func(p agentapi.Process) string { return cmp.Or(numbers[p.UUID], "-") }
	return view[agentapi.Process]{
		columns: []column[agentapi.Process]{
			{title: "NAMESPACE", text: func(p agentapi.Process) string { return cmp.Or(p.Namespace, "-") }},
			{title: "POD", text: func(p agentapi.Process) string { return cmp.Or(p.Pod, "-") }},
			{title: "CONTAINER", text: func(p agentapi.Process) string { return cmp.Or(p.Container, "-") }},
			{title: "NODE", text: func(p agentapi.Process) string { return p.Node }},
			{title: "GPU", text: gpu},
			{title: "UUID", text: func(p agentapi.Process) string { return p.UUID }, wide: true},
			{title: "PID", text: func(p agentapi.Process) string { return strconv.FormatUint(uint64(p.PID), 10) }},
			{title: "MEMORY", text: func(p agentapi.Process) string { return ofLimit(p.MemoryUsedBytes, p.MemoryLimitBytes) }},
			{title: "TIME", text: func(p agentapi.Process) string { return timeOf(p.Utilisation, p.ComputeLimitPPM, p.ComputeMaximumPPM) }},
			{title: "REQUESTS", text: func(p agentapi.Process) string { return Requested(p.Requests) }, wide: true},
			{title: "COMMAND", text: func(p agentapi.Process) string { return shorten(p.Command, shortCommand) }},
		},
		name: processName,
		none: "No process uses a GPU here.",
	}
}

// TimeOfLimit formats the GPU time that a container uses and its limit as "24.8/25 %".
// If the limit is a guarantee, the maximum follows: "44.8/20-50 %".
func TimeOfLimit(s *agentapi.Share) string {
	return timeOf(s.Utilisation, s.ComputeLimitPPM, s.ComputeMaximumPPM)
}

func timeOf(had *float64, limitPPM, maximumPPM uint32) string {
	text := "-"
	if had != nil {
		text = strconv.FormatFloat(*had, 'f', 1, 64)
	}
	if limitPPM == 0 {
		return text + " %"
	}
	return text + "/" + PercentTo(limitPPM, maximumPPM)
}

// Seconds formats a time with its significant digits.
func Seconds(s float64) string {
	switch d := time.Duration(s * float64(time.Second)); {
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", s)
	default:
		return d.Round(time.Second).String()
	}
}

// Requested formats the resources that a container requests.
func Requested(all map[string]int64) string {
	if len(all) == 0 {
		return "-"
	}
	names := make([]string, 0, len(all))
	for name, n := range all {
		names = append(names, fmt.Sprintf("%s=%d", name, n))
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

// MemoryOfLimit formats memory and its limit as "1024/4096 MiB".
func MemoryOfLimit(used *uint64, limit uint64) string { return ofLimit(used, limit) }

// Incomplete returns the error for the exit status if some nodes did not answer. The caller has
// written the answers of the other nodes.
func Incomplete(answered int, err error) error {
	if err == nil || answered == 0 {
		return err
	}
	return errors.New("not all nodes answered: " + err.Error()) // not ErrAway, because some nodes answered
}

// Missing returns the error for the exit status if some nodes did not answer, or if the filter names
// nodes without an agent.
func (f Filter) Missing(all []agentapi.Overview, silent error) error {
	if silent != nil {
		return Incomplete(len(all), silent)
	}
	unknown := slices.DeleteFunc(slices.Clone(f.Nodes), func(name string) bool {
		return slices.ContainsFunc(all, func(o agentapi.Overview) bool { return o.Node == name })
	})
	if len(unknown) == 0 {
		return nil
	}
	return fmt.Errorf("no agent on %s: without names, the command shows all nodes that have an agent", strings.Join(unknown, ", "))
}

// UnknownPods returns the error for the exit status if the filter names pods that have neither an entry
// nor a process.
func (f Filter) UnknownPods(entries []PodEntry, all []agentapi.Overview) error {
	unknown := slices.DeleteFunc(slices.Clone(f.Names), func(name string) bool {
		return slices.ContainsFunc(entries, func(e PodEntry) bool { return e.Pod == name }) ||
			slices.ContainsFunc(all, func(o agentapi.Overview) bool {
				return slices.ContainsFunc(o.Processes, func(p agentapi.Process) bool { return p.Pod == name })
			})
	})
	if len(unknown) == 0 {
		return nil
	}
	where := ""
	if f.Namespace != "" {
		where = " in namespace " + f.Namespace
	}
	return fmt.Errorf("found neither a GPU nor a waiting request of pod %s%s: check the name and the namespace", strings.Join(unknown, ", "), where)
}

// askPatience is the time-out for the next question.
const askPatience = time.Minute

// WriteAll writes the overview of a source with one node as JSON.
func WriteAll(ctx context.Context, source Source, out io.Writer) error {
	all, err := source.Overviews(ctx)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(all[0])
}

// AnswerLines writes an overview for each line that it reads, until the input ends.
// AnswerLines also ends after a minute without a line, because a lost connection may go
// unnoticed. A runtime does not end the process of an exec whose connection is lost.
func AnswerLines(ctx context.Context, source Source, in io.Reader, out io.Writer) error {
	lines := make(chan struct{})
	go func() {
		defer close(lines)
		for read := bufio.NewScanner(in); read.Scan(); {
			select {
			case lines <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		patience := time.NewTimer(askPatience)
		select {
		case <-ctx.Done():
			return nil
		case <-patience.C:
			return nil
		case _, asked := <-lines:
			if !asked {
				return nil
			}
		}
		patience.Stop()
		if err := WriteAll(ctx, source, out); err != nil {
			return unlessEnded(ctx, err)
		}
	}
}
