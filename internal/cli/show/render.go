// SPDX-License-Identifier: Apache-2.0

package show

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
)

// These constants are the output formats of answers.
const (
	FormatTable = "table"
	FormatWide  = "wide"
	FormatJSON  = "json"
	FormatYAML  = "yaml"
	// FormatName is a line of kind/name for each object, as kubectl writes it.
	FormatName = "name"
	// FormatRaw is a line of tab-separated fields for each object, without rounding and headings.
	FormatRaw = "raw"
)

var (
	// ReportFormats are the output formats of reports, which are not lists of objects.
	ReportFormats = []string{FormatTable, FormatJSON, FormatYAML}
	// ViewFormats are the output formats of lists of objects.
	ViewFormats = []string{FormatTable, FormatWide, FormatJSON, FormatYAML, FormatName}
	// Formats are the output formats of processes and devices.
	Formats = append(slices.Clone(ViewFormats), FormatRaw)
)

// CheckFormat returns an error if format is not in allowed.
func CheckFormat(format string, allowed []string) error {
	if !slices.Contains(allowed, format) {
		return fmt.Errorf("--output is %q; allowed: %s", format, strings.Join(allowed, ", "))
	}
	return nil
}

// Encode writes a value as YAML if format is FormatYAML, and as indented JSON otherwise.
func Encode(out io.Writer, format string, value any) error {
	if format == FormatYAML {
		raw, err := yaml.Marshal(value)
		if err == nil {
			_, err = out.Write(raw)
		}
		return err
	}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(value)
}

// column is a column of a table: its title and the text of its cells.
type column[T any] struct {
	title string
	text  func(T) string
	wide  bool // only in the wide table
}

// view describes the output of a list.
type view[T any] struct {
	columns []column[T]
	// raw returns the fields of a line for scripts: unrounded amounts without
	// units.
	raw func(T) []string
	// name returns kind/name of an item.
	name func(T) string
	// totals returns the cells of the table's last line, by column title. A view without totals has
	// no such line.
	totals func([]T) map[string]string
	none   string // printed for an empty list
}

var processView = view[agentapi.Process]{
	columns: []column[agentapi.Process]{
		{title: "POD", text: func(p agentapi.Process) string { return cmp.Or(p.Pod, "-") }},
		{title: "NS", text: func(p agentapi.Process) string { return cmp.Or(p.Namespace, "-") }},
		{title: "CONTAINER", text: func(p agentapi.Process) string { return cmp.Or(p.Container, "-") }, wide: true},
		{title: "DEVICE", text: func(p agentapi.Process) string { return p.UUID }},
		{title: "NODE", text: func(p agentapi.Process) string { return p.Node }},
		{title: "GPU", text: func(p agentapi.Process) string { return percentOr(p.Utilisation) }},
		{title: "OF SHARE", text: func(p agentapi.Process) string { return percentOr(p.ShareUtilisation) }},
		{title: "MEMORY", text: func(p agentapi.Process) string { return ofLimit(p.MemoryUsedBytes, p.MemoryLimitBytes) }},
		{title: "PID", text: func(p agentapi.Process) string { return strconv.FormatUint(uint64(p.PID), 10) }},
		{title: "TYPE", text: func(p agentapi.Process) string { return cmp.Or(p.Type, "-") }, wide: true},
		{title: "CMD", text: func(p agentapi.Process) string { return shorten(p.Command, shortCommand) }},
		{title: "REQ", text: func(p agentapi.Process) string { return requests(p.Requests) }},
	},
	raw: func(p agentapi.Process) []string {
		return []string{p.Namespace, p.Pod, p.Container, p.UUID, p.Node, number(p.Utilisation), number(p.ShareUtilisation),
			whole(p.MemoryUsedBytes), strconv.FormatUint(p.MemoryLimitBytes, 10), strconv.FormatUint(uint64(p.PID), 10),
			p.Command, requests(p.Requests)}
	},
	name:   processName,
	totals: processTotals,
	none:   "No process uses a GPU here.",
}

var deviceView = view[agentapi.Device]{
	columns: []column[agentapi.Device]{
		{title: "IDX", text: func(d agentapi.Device) string { return strconv.Itoa(d.Index) }},
		{title: "UUID", text: func(d agentapi.Device) string { return d.UUID }},
		{title: "NAME", text: func(d agentapi.Device) string { return cmp.Or(d.Name, "-") }, wide: true},
		{title: "GPU", text: func(d agentapi.Device) string { return percentOr(d.Utilisation) }, wide: true},
		{title: "MEMORY", text: func(d agentapi.Device) string { return ofLimit(d.MemoryUsedBytes, d.MemoryBytes) }},
		{title: "SHARES", text: func(d agentapi.Device) string {
			return each(d.Sharing, sharesHeld)
		}},
		{title: "SHARE SIZE", text: func(d agentapi.Device) string {
			return each(d.Sharing, func(s agentapi.Sharing) string { return Mebibytes(s.ShareBytes) })
		}},
		{title: "RESOURCE", text: func(d agentapi.Device) string {
			return each(d.Sharing, func(s agentapi.Sharing) string { return s.Resource })
		}, wide: true},
		{title: "HEALTH", text: func(d agentapi.Device) string { return cmp.Or(d.Unhealthy, "ok") }, wide: true},
	},
	raw: func(d agentapi.Device) []string {
		return []string{strconv.Itoa(d.Index), d.UUID, d.Name, number(d.Utilisation), whole(d.MemoryUsedBytes),
			strconv.FormatUint(d.MemoryBytes, 10), each(d.Sharing, func(s agentapi.Sharing) string {
				return fmt.Sprintf("%s=%d/%d*%d", s.Resource, s.Held, s.PerGPU, s.ShareBytes)
			})}
	},
	name:   func(d agentapi.Device) string { return "gpu/" + d.UUID },
	totals: deviceTotals,
	none:   "There is no GPU here.",
}

// shortCommand is the greatest length of a command line in a table.
const shortCommand = 40

// writer writes lists repeatedly, with their headings once.
type writer[T any] struct {
	view   view[T]
	format string
	out    io.Writer
	// watched reports whether more lists follow.
	watched bool
	titled  bool
	widths  []int
}

func (w *writer[T]) write(list []T) error {
	switch w.format {
	case FormatJSON, FormatYAML:
		return w.encode(list)
	case FormatName:
		return w.names(list)
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

// encode writes a list. If more lists follow, encode writes JSON on one line, and YAML as a document
// of a stream.
func (w *writer[T]) encode(list []T) error {
	switch {
	case w.watched && w.format == FormatJSON:
		return json.NewEncoder(w.out).Encode(list)
	case w.watched:
		if _, err := fmt.Fprintln(w.out, "---"); err != nil {
			return err
		}
	}
	return Encode(w.out, w.format, list)
}

// names writes each name once, because a pod has an item for each container and GPU.
func (w *writer[T]) names(list []T) error {
	written := map[string]bool{}
	for _, item := range list {
		name := w.view.name(item)
		if written[name] {
			continue
		}
		written[name] = true
		if _, err := fmt.Fprintln(w.out, name); err != nil {
			return err
		}
	}
	return nil
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
	if w.view.totals != nil && !w.watched {
		totals := w.view.totals(list)
		lines = append(lines, w.cells(func(c column[T]) string { return totals[c.title] }))
	}
	w.widen(lines)
	for _, line := range lines {
		if _, err := fmt.Fprintln(w.out, strings.TrimRight(w.pad(line), " ")); err != nil {
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

// widen widens each column to its longest cell. Later lines keep the width.
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

// percentOr formats a percentage of a GPU's time, "-" if unknown.
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

// ofLimit formats "used/limit MiB", with "-" if used is unknown.
func ofLimit(used *uint64, limit uint64) string {
	text := "-"
	if used != nil {
		text = strings.TrimSuffix(Mebibytes(*used), " MiB")
	}
	if limit == 0 {
		return text + " MiB"
	}
	return text + "/" + Mebibytes(limit)
}

// requests formats the resources that a container requests. A single resource
// shows only its amount.
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

func each(all []agentapi.Sharing, text func(agentapi.Sharing) string) string {
	texts := make([]string, len(all))
	for i, s := range all {
		texts[i] = text(s)
	}
	return cmp.Or(strings.Join(texts, ","), "-")
}

// OneLine returns text with each run of white space replaced by a space, made safe for a terminal.
// Tenants choose parts of Events and of the messages of containers.
func OneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.Join(strings.Fields(text), " "))
}

// shorten cuts text to length characters.
func shorten(text string, length int) string {
	runes := []rune(text)
	if len(runes) <= length {
		return text
	}
	return string(runes[:length-1]) + "…"
}
