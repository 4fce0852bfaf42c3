package ctl

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

	"github.com/nri-vgpu/nri-vgpu/pkg/query"
)

// Source tells what there is on one node or many.
type Source interface {
	// Overviews gives that of each node that answers; the error is about the others.
	Overviews(ctx context.Context) ([]query.Overview, error)
	// Follow tells of each node about once a second until ctx ends, and of each
	// that does not answer why. It calls tell from many goroutines.
	Follow(ctx context.Context, tell func(node string, o query.Overview, err error))
}

// Local is the agent behind a socket: of a node, or of a container, which is told
// of its own pod.
type Local struct{ Socket string }

// Overviews gives the one that there is.
func (l Local) Overviews(ctx context.Context) ([]query.Overview, error) {
	var o query.Overview
	if err := (query.Client{Socket: l.Socket}).Ask(ctx, query.All, &o); err != nil {
		return nil, err
	}
	return []query.Overview{o}, nil
}

// Follow tells of it.
func (l Local) Follow(ctx context.Context, tell func(string, query.Overview, error)) {
	node := ""
	for {
		all, err := l.Overviews(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			tell(node, query.Overview{}, err)
		default:
			node = all[0].Node
			tell(node, all[0], nil)
		}
		if !sleep(ctx, watchInterval) {
			return
		}
	}
}

// Filter chooses of overviews. What is empty chooses all.
type Filter struct {
	Nodes     []string
	Namespace string
	// Names are pods'.
	Names []string
	// Selected, where set, tells whether a pod was selected by its labels.
	Selected func(namespace, pod string) bool
	// Inside leaves out processes outside of pods.
	Inside bool
}

// Has tells whether a pod is chosen.
func (f Filter) Has(namespace, pod string) bool {
	return (f.Namespace == "" || f.Namespace == namespace) &&
		(len(f.Names) == 0 || slices.Contains(f.Names, pod)) &&
		(f.Selected == nil || f.Selected(namespace, pod))
}

// Apply gives what is chosen of overviews. GPUs stay, whoever is on them.
func (f Filter) Apply(all []query.Overview) []query.Overview {
	var chosen []query.Overview
	for _, o := range all {
		if len(f.Nodes) > 0 && !slices.Contains(f.Nodes, o.Node) {
			continue
		}
		o.Containers = slices.DeleteFunc(slices.Clone(o.Containers), func(c query.Container) bool { return !f.Has(c.Namespace, c.Pod) })
		o.Processes = slices.DeleteFunc(slices.Clone(o.Processes), func(p query.Process) bool {
			return !f.Has(p.Namespace, p.Pod) || f.Inside && p.Pod == ""
		})
		chosen = append(chosen, o)
	}
	slices.SortFunc(chosen, func(a, b query.Overview) int { return cmp.Compare(a.Node, b.Node) })
	return chosen
}

// Orders in which lists are sorted.
const (
	ByName   = "name"
	ByMemory = "memory"
	ByTime   = "time"
)

// Orders lists them.
var Orders = []string{ByName, ByMemory, ByTime}

// ViewFormats are those in which overviews are written.
var ViewFormats = []string{FormatTable, FormatWide, FormatJSON, FormatYAML}

// Listing is how lists are written.
type Listing struct {
	// Format is one of ViewFormats, Order one of Orders.
	Format, Order string
	NoHeaders     bool
	Out           io.Writer
}

// Check says what is wrong with a listing.
func (l Listing) Check() error {
	if !slices.Contains(ViewFormats, l.Format) {
		return fmt.Errorf("--output is %q; allowed: %s", l.Format, strings.Join(ViewFormats, ", "))
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

// greater orders by an amount, the most first; what is not known comes last.
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

// order sorts items that are in the order of their names.
func order[T any](items []T, by string, memory func(T) *uint64, share func(T) *float64) {
	switch by {
	case ByMemory:
		slices.SortStableFunc(items, func(a, b T) int { return greater(memory(a), memory(b)) })
	case ByTime:
		slices.SortStableFunc(items, func(a, b T) int { return greater(share(a), share(b)) })
	}
}

// GPUs writes the GPUs.
func (l Listing) GPUs(all []query.Overview) error {
	items := []query.GPU{}
	for _, o := range all {
		items = append(items, o.GPUs...)
	}
	order(items, l.Order, func(g query.GPU) *uint64 { return g.MemoryUsedBytes }, func(g query.GPU) *float64 { return g.Utilisation })
	return list(l, gpuView, items)
}

// Processes writes the processes.
func (l Listing) Processes(all []query.Overview) error {
	items := []query.Process{}
	index := map[string]int{}
	for _, o := range all {
		items = append(items, o.Processes...)
		for _, g := range o.GPUs {
			index[g.UUID] = g.Index
		}
	}
	order(items, l.Order, func(p query.Process) *uint64 { return p.MemoryUsedBytes }, func(p query.Process) *float64 { return p.Utilisation })
	return list(l, psView(index), items)
}

// PodEntry is a container that was given GPUs, or a pod that waits for them.
type PodEntry struct {
	query.Container
	// Status says how the pod is, in one word; empty where only the agent was asked.
	Status string `json:"status,omitempty"`
}

// Pods writes who was given what.
func (l Listing) Pods(items []PodEntry) error {
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
		func(r podRow) *uint64 { return part(r, func(s *query.Share) *uint64 { return s.MemoryUsedBytes }) },
		func(r podRow) *float64 { return part(r, func(s *query.Share) *float64 { return s.Utilisation }) })
	return list(l, podView, rows)
}

// Entries are the containers of overviews.
func Entries(all []query.Overview) []PodEntry {
	items := []PodEntry{}
	for _, o := range all {
		for _, c := range o.Containers {
			items = append(items, PodEntry{Container: c})
		}
	}
	return items
}

// podRow is a container on one GPU, or on none.
type podRow struct {
	PodEntry
	share *query.Share
}

func part[T any](r podRow, of func(*query.Share) *T) *T {
	if r.share == nil {
		return nil
	}
	return of(r.share)
}

// ofShare is a column that is empty for those without a GPU.
func ofShare(text func(*query.Share) string) func(podRow) string {
	return func(r podRow) string {
		if r.share == nil {
			return "-"
		}
		return text(r.share)
	}
}

// ofAccount is one that is empty for those without an account, too.
func ofAccount(text func(*query.Account) string) func(podRow) string {
	return ofShare(func(s *query.Share) string {
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
		{title: "GPU", text: ofShare(func(s *query.Share) string { return strconv.Itoa(s.Index) })},
		{title: "UUID", text: ofShare(func(s *query.Share) string { return s.UUID }), wide: true},
		{title: "MEMORY", text: ofShare(func(s *query.Share) string { return ofLimit(s.MemoryUsedBytes, s.MemoryLimitBytes) })},
		{title: "TIME", text: ofShare(TimeOfLimit)},
		{title: "HELD BACK", text: ofAccount(func(a *query.Account) string { return Seconds(a.ThrottledSeconds) })},
		{title: "REFUSED", text: ofAccount(func(a *query.Account) string { return strconv.FormatUint(a.Refusals, 10) })},
		{title: "GPU TIME", text: ofAccount(func(a *query.Account) string { return Seconds(a.BusySeconds) }), wide: true},
		{title: "LAUNCHES", text: ofAccount(func(a *query.Account) string { return strconv.FormatUint(a.Launches, 10) }), wide: true},
		{title: "PROCESSES", text: ofShare(func(s *query.Share) string { return strconv.Itoa(s.Processes) })},
		{title: "ASKS FOR", text: func(r podRow) string { return Requested(r.Requests) }, wide: true},
		{title: "STATUS", text: func(r podRow) string { return cmp.Or(r.Status, "-") }},
	},
	none: "Nobody has a GPU here.",
}

var gpuView = view[query.GPU]{
	columns: []column[query.GPU]{
		{title: "NODE", text: func(g query.GPU) string { return g.Node }},
		{title: "GPU", text: func(g query.GPU) string { return strconv.Itoa(g.Index) }},
		{title: "UUID", text: func(g query.GPU) string { return g.UUID }, wide: true},
		{title: "NAME", text: func(g query.GPU) string { return cmp.Or(g.Name, "-") }},
		{title: "MEMORY", text: func(g query.GPU) string { return ofLimit(g.MemoryUsedBytes, g.MemoryBytes) }},
		{title: "GIVEN", text: ofRoom(func(r *query.Room) string {
			given := r.MemoryBytes - r.FreeMemoryBytes
			return ofLimit(&given, r.MemoryBytes)
		})},
		{title: "TIME", text: func(g query.GPU) string { return percentOr(g.Utilisation) }},
		{title: "GIVEN", text: ofRoom(func(r *query.Room) string { return percent(wholePPM - r.FreeComputePPM) })},
		{title: "CONTAINERS", text: ofRoom(func(r *query.Room) string { return strconv.Itoa(r.Holders) })},
		{title: "SLOTS LEFT", text: ofRoom(func(r *query.Room) string { return strconv.Itoa(r.FreeSlots) }), wide: true},
		{title: "SHARED BY", text: ofRoom(sharedBy), wide: true},
		{title: "HEALTH", text: func(g query.GPU) string { return cmp.Or(g.Unhealthy, "ok") }},
	},
	none: "There is no GPU here.",
}

// wholePPM is all of a GPU's time in parts per million.
const wholePPM = 1_000_000

func ofRoom(text func(*query.Room) string) func(query.GPU) string {
	return func(g query.GPU) string {
		if g.Room == nil {
			return "-"
		}
		return text(g.Room)
	}
}

func sharedBy(r *query.Room) string {
	switch {
	case r.Exclusive:
		return "nobody"
	case r.MPS:
		return "mps"
	default:
		return "time"
	}
}

func psView(index map[string]int) view[query.Process] {
	gpu := func(p query.Process) string {
		if i, ok := index[p.UUID]; ok {
			return strconv.Itoa(i)
		}
		return "-"
	}
	return view[query.Process]{
		columns: []column[query.Process]{
			{title: "NAMESPACE", text: func(p query.Process) string { return cmp.Or(p.Namespace, "-") }},
			{title: "POD", text: func(p query.Process) string { return cmp.Or(p.Pod, "-") }},
			{title: "CONTAINER", text: func(p query.Process) string { return cmp.Or(p.Container, "-") }},
			{title: "NODE", text: func(p query.Process) string { return p.Node }},
			{title: "GPU", text: gpu},
			{title: "UUID", text: func(p query.Process) string { return p.UUID }, wide: true},
			{title: "PID", text: func(p query.Process) string { return strconv.FormatUint(uint64(p.PID), 10) }},
			{title: "MEMORY", text: func(p query.Process) string { return ofLimit(p.MemoryUsedBytes, p.MemoryLimitBytes) }},
			{title: "TIME", text: func(p query.Process) string { return timeOf(p.Utilisation, p.ComputeLimitPPM, 0) }},
			{title: "ASKS FOR", text: func(p query.Process) string { return Requested(p.Requests) }, wide: true},
			{title: "COMMAND", text: func(p query.Process) string { return shorten(p.Command, shortCommand) }},
		},
		none: "No process uses a GPU here.",
	}
}

// TimeOfLimit writes "24.8/25 %": what a container has of a GPU's time, of its limit; or
// "44.8/20-50 %", of its guarantee and its maximum.
func TimeOfLimit(s *query.Share) string {
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
	return text + "/" + percentTo(limitPPM, maximumPPM)
}

// Seconds writes a time with as many digits as matter.
func Seconds(s float64) string {
	switch d := time.Duration(s * float64(time.Second)); {
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", s)
	default:
		return d.Round(time.Second).String()
	}
}

// Requested writes what a container asks for.
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

// MemoryOfLimit writes "1024/4096 MiB".
func MemoryOfLimit(used *uint64, limit uint64) string { return ofLimit(used, limit) }

// Complain is the error of overviews, where some nodes answered and some did not:
// what those say was written, and the status tells that it is not all.
func Complain(answered int, err error) error {
	if err == nil || answered == 0 {
		return err
	}
	return errors.New("not all nodes answered: " + err.Error()) // not ErrAway: some did
}

// askPatience is how long the next question is waited for.
const askPatience = time.Minute

// WriteAll writes an overview as JSON.
func WriteAll(ctx context.Context, source Source, out io.Writer) error {
	all, err := source.Overviews(ctx)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(all[0])
}

// AnswerLines writes one for each line that it reads, until there are no more. Who is
// gone without a word asks no more either: a minute without a question is the end. (A
// runtime does not end what was started by an exec whose connection is lost.)
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
