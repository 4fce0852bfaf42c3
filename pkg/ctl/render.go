package ctl

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"github.com/nri-vgpu/nri-vgpu/pkg/query"
)

// Formats in which answers are written.
const (
	FormatTable = "table"
	FormatWide  = "wide"
	FormatJSON  = "json"
	FormatRaw   = "raw"
	FormatYAML  = "yaml"
)

// Formats lists them.
var Formats = []string{FormatTable, FormatWide, FormatJSON, FormatRaw}

// column is one of a table: its title, and what stands in it.
type column[T any] struct {
	title string
	text  func(T) string
	wide  bool // not in the narrow table
}

// view is how a list is written.
type view[T any] struct {
	columns []column[T]
	// raw are the fields of a line for programs: full amounts, no units.
	raw  func(T) []string
	none string // what is said of an empty list
}

var processView = view[query.Process]{
	columns: []column[query.Process]{
		{title: "POD", text: func(p query.Process) string { return cmp.Or(p.Pod, "-") }},
		{title: "NS", text: func(p query.Process) string { return cmp.Or(p.Namespace, "-") }},
		{title: "CONTAINER", text: func(p query.Process) string { return cmp.Or(p.Container, "-") }, wide: true},
		{title: "DEVICE", text: func(p query.Process) string { return p.UUID }},
		{title: "NODE", text: func(p query.Process) string { return p.Node }},
		{title: "GPU", text: func(p query.Process) string { return percentOr(p.Utilisation) }},
		{title: "OF SHARE", text: func(p query.Process) string { return percentOr(p.ShareUtilisation) }},
		{title: "MEMORY", text: func(p query.Process) string { return ofLimit(p.MemoryUsedBytes, p.MemoryLimitBytes) }},
		{title: "PID", text: func(p query.Process) string { return strconv.FormatUint(uint64(p.PID), 10) }},
		{title: "TYPE", text: func(p query.Process) string { return cmp.Or(p.Type, "-") }, wide: true},
		{title: "CMD", text: func(p query.Process) string { return shorten(p.Command, shortCommand) }},
		{title: "REQ", text: func(p query.Process) string { return requests(p.Requests) }},
	},
	raw: func(p query.Process) []string {
		return []string{p.Namespace, p.Pod, p.Container, p.UUID, p.Node, number(p.Utilisation), number(p.ShareUtilisation),
			whole(p.MemoryUsedBytes), strconv.FormatUint(p.MemoryLimitBytes, 10), strconv.FormatUint(uint64(p.PID), 10),
			p.Command, requests(p.Requests)}
	},
	none: "No process uses a GPU here.",
}

var deviceView = view[query.Device]{
	columns: []column[query.Device]{
		{title: "IDX", text: func(d query.Device) string { return strconv.Itoa(d.Index) }},
		{title: "UUID", text: func(d query.Device) string { return d.UUID }},
		{title: "NAME", text: func(d query.Device) string { return cmp.Or(d.Name, "-") }, wide: true},
		{title: "GPU", text: func(d query.Device) string { return percentOr(d.Utilisation) }, wide: true},
		{title: "MEMORY", text: func(d query.Device) string { return ofLimit(d.MemoryUsedBytes, d.MemoryBytes) }},
		{title: "SHARES", text: func(d query.Device) string {
			return each(d.Sharing, func(s query.Sharing) string { return fmt.Sprintf("%d/%d", s.Held, s.PerGPU) })
		}},
		{title: "SHARE SIZE", text: func(d query.Device) string {
			return each(d.Sharing, func(s query.Sharing) string { return mebibytes(s.ShareBytes) })
		}},
		{title: "RESOURCE", text: func(d query.Device) string {
			return each(d.Sharing, func(s query.Sharing) string { return s.Resource })
		}, wide: true},
		{title: "HEALTH", text: func(d query.Device) string { return cmp.Or(d.Unhealthy, "ok") }, wide: true},
	},
	raw: func(d query.Device) []string {
		return []string{strconv.Itoa(d.Index), d.UUID, d.Name, number(d.Utilisation), whole(d.MemoryUsedBytes),
			strconv.FormatUint(d.MemoryBytes, 10), each(d.Sharing, func(s query.Sharing) string {
				return fmt.Sprintf("%s=%d/%d*%d", s.Resource, s.Held, s.PerGPU, s.ShareBytes)
			})}
	},
	none: "There is no GPU here.",
}

// shortCommand is how much of a command line a table has room for.
const shortCommand = 40

// writer writes a list again and again, its headings once.
type writer[T any] struct {
	view   view[T]
	format string
	out    io.Writer
	// watched: it is one of many.
	watched bool
	titled  bool
	widths  []int
}

func (w *writer[T]) write(list []T) error {
	switch w.format {
	case FormatJSON:
		e := json.NewEncoder(w.out)
		if !w.watched {
			e.SetIndent("", "  ")
		}
		return e.Encode(list)
	case FormatYAML:
		raw, err := yaml.Marshal(list)
		if err == nil {
			_, err = w.out.Write(raw)
		}
		return err
	case FormatRaw:
		for _, item := range list {
			if _, err := fmt.Fprintln(w.out, strings.Join(w.view.raw(item), "\t")); err != nil {
				return err
			}
		}
		return nil
	default:
		return w.table(list)
	}
}

func (w *writer[T]) table(list []T) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w.out, w.view.none)
		return err
	}
	var lines [][]string
	if !w.titled {
		lines = append(lines, w.cells(func(c column[T]) string { return c.title }))
		w.titled = w.watched
	}
	for _, item := range list {
		lines = append(lines, w.cells(func(c column[T]) string { return c.text(item) }))
	}
	w.widen(lines)
	for _, line := range lines {
		if _, err := fmt.Fprintln(w.out, w.pad(line)); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer[T]) cells(text func(column[T]) string) []string {
	var cells []string
	for _, c := range w.view.columns {
		if !c.wide || w.format == FormatWide {
			cells = append(cells, text(c))
		}
	}
	return cells
}

// widen makes room for the longest cell of each column. It is kept for the lines
// that come later.
func (w *writer[T]) widen(lines [][]string) {
	if w.widths == nil {
		w.widths = make([]int, len(lines[0]))
	}
	for _, line := range lines {
		for i, cell := range line {
			w.widths[i] = max(w.widths[i], utf8.RuneCountInString(cell))
		}
	}
}

func (w *writer[T]) pad(line []string) string {
	var b strings.Builder
	for i, cell := range line {
		b.WriteString(cell)
		if i < len(line)-1 {
			b.WriteString(strings.Repeat(" ", w.widths[i]-utf8.RuneCountInString(cell)+2))
		}
	}
	return b.String()
}

// percentOr writes a part of a GPU's time, "-" where it is not known.
func percentOr(value *float64) string {
	if value == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", *value)
}

func number(value *float64) string {
	if value == nil {
		return ""
	}
	return strconv.FormatFloat(*value, 'f', 1, 64)
}

func whole(value *uint64) string {
	if value == nil {
		return ""
	}
	return strconv.FormatUint(*value, 10)
}

// ofLimit writes "used/limit MiB", and "-" for what is not known.
func ofLimit(used *uint64, limit uint64) string {
	text := "-"
	if used != nil {
		text = strings.TrimSuffix(mebibytes(*used), " MiB")
	}
	if limit == 0 {
		return text + " MiB"
	}
	return text + "/" + mebibytes(limit)
}

// requests writes what a container asks for: the number alone where there is one.
func requests(all map[string]int64) string {
	if len(all) == 0 {
		return "-"
	}
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	if len(names) == 1 {
		return strconv.FormatInt(all[names[0]], 10)
	}
	slices.Sort(names)
	for i, name := range names {
		names[i] = fmt.Sprintf("%s=%d", name, all[name])
	}
	return strings.Join(names, ",")
}

func each(all []query.Sharing, text func(query.Sharing) string) string {
	texts := make([]string, len(all))
	for i, s := range all {
		texts[i] = text(s)
	}
	return cmp.Or(strings.Join(texts, ","), "-")
}

// shorten cuts a text that is longer than so many characters.
func shorten(text string, length int) string {
	runes := []rune(text)
	if len(runes) <= length {
		return text
	}
	return string(runes[:length-1]) + "…"
}
