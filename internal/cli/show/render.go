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
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
)

// These constants are the output formats of answers.
const (
	FormatTable = "table"
	FormatWide  = "wide"
	FormatJSON  = "json"
	FormatRaw   = "raw"
	FormatYAML  = "yaml"
)

// Formats are the output formats of processes and devices.
var Formats = []string{FormatTable, FormatWide, FormatJSON, FormatRaw}

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
	raw  func(T) []string
	none string // printed for an empty list
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
	none: "No process uses a GPU here.",
}

var deviceView = view[agentapi.Device]{
	columns: []column[agentapi.Device]{
		{title: "IDX", text: func(d agentapi.Device) string { return strconv.Itoa(d.Index) }},
		{title: "UUID", text: func(d agentapi.Device) string { return d.UUID }},
		{title: "NAME", text: func(d agentapi.Device) string { return cmp.Or(d.Name, "-") }, wide: true},
		{title: "GPU", text: func(d agentapi.Device) string { return percentOr(d.Utilisation) }, wide: true},
		{title: "MEMORY", text: func(d agentapi.Device) string { return ofLimit(d.MemoryUsedBytes, d.MemoryBytes) }},
		{title: "SHARES", text: func(d agentapi.Device) string {
			return each(d.Sharing, func(s agentapi.Sharing) string { return fmt.Sprintf("%d/%d", s.Held, s.PerGPU) })
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
	none: "There is no GPU here.",
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

// shorten cuts text to length characters.
func shorten(text string, length int) string {
	runes := []rune(text)
	if len(runes) <= length {
		return text
	}
	return string(runes[:length-1]) + "…"
}
