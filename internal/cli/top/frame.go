// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
)

const (
	minBar, maxBar = 4, 24
	// maxWho is the greatest width of a container's name.
	maxWho = 48
	// maxErrors is the greatest number of errors of nodes that the screen lists.
	maxErrors = 3
)

// state is the content of the screen.
type state struct {
	overviews []agentapi.Overview
	// earlier are the previous overviews, by node.
	earlier map[string]agentapi.Overview
	errors  map[string]error // by node
	order   string
	scroll  int
	now     time.Time
	color   bool
}

// These constants are escape sequences of colours. Terminals without colours ignore the sequences.
const (
	bold, red, green, yellow, reverse, plain = "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[7m", "\x1b[0m"
)

// frame returns the lines of the screen: at most height lines of at most width
// characters.
func frame(s *state, width, height int) []string {
	if width < 1 || height < 1 {
		return nil
	}
	foot := s.missing(width)
	if s.room(height, foot) < 1 {
		foot = nil // the list takes precedence over the errors
	}
	lines := []string{s.paint(reverse, pad(s.title(), width))}
	body := s.body(width)
	head, body := body[0], body[1:]
	lines = append(lines, s.paint(bold, cut(head, width)))
	room := max(s.room(height, foot), 0)
	s.scroll = min(max(s.scroll, 0), max(len(body)-room, 0))
	body = body[s.scroll:]
	lines = append(lines, body[:min(len(body), room)]...)
	for len(lines) < height-len(foot)-1 {
		lines = append(lines, "")
	}
	lines = append(lines, foot...)
	lines = append(lines, cut("m memory  t time  n name  arrows scroll  q quit", width-1))
	return lines[:min(len(lines), height)]
}

// room returns the number of lines for the list, besides title, headings and
// keys.
func (s *state) room(height int, foot []string) int { return height - 3 - len(foot) }

func (s *state) title() string {
	gpus, containers := 0, 0
	for _, o := range s.overviews {
		gpus += len(o.GPUs)
		containers += len(o.Containers)
	}
	return fmt.Sprintf("nri-vgpu  %s  nodes: %d  GPUs: %d  containers: %d  by %s", s.now.Format(time.TimeOnly), len(s.overviews), gpus, containers, s.order)
}

// missing returns the lines about nodes that do not answer.
func (s *state) missing(width int) []string {
	var lines []string
	for _, node := range slices.Sorted(maps.Keys(s.errors)) {
		if len(lines) == maxErrors {
			return append(lines, s.paint(red, cut(fmt.Sprintf("and %d more nodes do not answer", len(s.errors)-maxErrors), width)))
		}
		lines = append(lines, s.paint(red, cut(show.OneLine(s.errors[node].Error()), width)))
	}
	return lines
}

// body returns the headings, and a line for each row.
func (s *state) body(width int) []string {
	list := rows(s.overviews, s.order, s.earlier)
	memory, share, who := len("MEMORY"), len("TIME"), len("GPU, CONTAINER")
	for _, r := range list {
		memory = max(memory, utf8.RuneCountInString(r.memoryText()))
		share = max(share, utf8.RuneCountInString(r.timeText))
		who = max(who, utf8.RuneCountInString(r.name()))
	}
	who = min(who, maxWho)
	const rest = len("  THROTTLED  REFUSED  PROCS")
	// Two bars with their brackets and spaces share the remaining width.
	bar := (width - who - memory - share - rest - len("  [] ")*2) / 2
	bar = min(bar, maxBar)
	lines := []string{head(who, memory, share, bar)}
	for _, r := range list {
		lines = append(lines, s.line(r, width, who, memory, share, bar))
	}
	if len(list) == 0 {
		lines = append(lines, cut("There is no GPU here.", width))
	}
	return lines
}

func head(who, memory, share, bar int) string {
	room := 0
	if bar >= minBar {
		room = bar + len("[] ")
	}
	return fmt.Sprintf("%s  %s  %s  THROTTLED  REFUSED  PROCS", pad("GPU, CONTAINER", who), pad("MEMORY", memory+room), pad("TIME", share+room))
}

func (r row) name() string {
	if r.who == "" {
		return fmt.Sprintf("%s GPU %s", r.node, r.number)
	}
	return "  " + r.who
}

func (s *state) line(r row, width, who, memory, share, bar int) string {
	used := 0.0
	if r.memory != nil && r.memoryLimit > 0 {
		used = float64(*r.memory) / float64(r.memoryLimit)
	}
	cells := []cell{{text: pad(cut(r.name(), who), who)}}
	if r.who == "" {
		cells[0].color = bold
	}
	cells = append(cells, bars(used, bar)...)
	cells = append(cells, cell{text: pad(r.memoryText(), memory)})
	if r.unhealthy != "" {
		cells = append(cells, cell{text: "  " + r.unhealthy, color: red})
		return s.join(cells, width)
	}
	cells = append(cells, bars(of(r.time)/cmp.Or(r.timeLimit, wholeTime), bar)...)
	cells = append(cells, cell{text: pad(r.timeText, share)},
		cell{text: fmt.Sprintf("  %9s  %7s  %5d", r.back, r.refusals, r.processes)})
	return s.join(cells, width)
}

// cell is a text in one colour.
type cell struct{ text, color string }

// bars returns a bar and a separator. The bar is full when the limit is reached.
// If width is below minBar, bars returns the separator alone.
func bars(part float64, width int) []cell {
	if width < minBar {
		return []cell{{text: "  "}}
	}
	color := green
	switch {
	case part >= 0.9:
		color = red
	case part >= 0.7:
		color = yellow
	}
	full := min(max(int(part*float64(width)+0.5), 0), width)
	return []cell{{text: "  ["}, {text: strings.Repeat("|", full), color: color}, {text: strings.Repeat(" ", width-full) + "] "}}
}

// join concatenates cells and cuts them at width. Colours do not count.
func (s *state) join(cells []cell, width int) string {
	var b strings.Builder
	for _, c := range cells {
		text := cut(c.text, width)
		width -= utf8.RuneCountInString(text)
		b.WriteString(s.paint(c.color, text))
		if width <= 0 {
			break
		}
	}
	return b.String()
}

func (s *state) paint(color, text string) string {
	if !s.color || color == "" || text == "" {
		return text
	}
	return color + text + plain
}

// cut shortens text to width characters.
func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:max(width, 0)])
}

// pad cuts or extends text to exactly width characters.
func pad(text string, width int) string {
	return cut(text, width) + strings.Repeat(" ", max(width-utf8.RuneCountInString(text), 0))
}
