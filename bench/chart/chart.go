// SPDX-License-Identifier: Apache-2.0

// Package chart draws the results of benchmarks as SVG. A figure has small panels with lines or
// bars, and is readable on light and dark pages.
package chart

import (
	"bytes"
	"io"
)

// MaxSeries is the number of series that are distinguishable.
const MaxSeries = 5

// Figure is a picture of panels with a common legend.
type Figure struct {
	Title, Subtitle string
	// Legend contains the names of the series, by index: at most MaxSeries.
	Legend []string
	// Reference is the name of the dashed line or of the marks on bars. Reference is "" if the
	// chart has neither line nor marks.
	Reference string
	Columns   int
	Panels    []Panel
}

// Panel is a set of axes: [Lines] or [Bars]. A figure has panels of one kind.
type Panel interface {
	draw(c *canvas, area box)
	// key draws the sample of a series for the legend.
	key(c *canvas, index int, x, y float64)
	// referenceClass returns the CSS class of the reference.
	referenceClass() string
}

// Axis is a linear scale.
type Axis struct {
	Label    string
	Min, Max float64
	Ticks    []float64
}

// at returns the coordinate of a value on an axis from one coordinate to another.
func (a Axis) at(v, from, to float64) float64 {
	return from + (v-a.Min)/(a.Max-a.Min)*(to-from)
}

// These sizes are in pixels.
const (
	panelWidth, panelHeight = 290.0, 250.0
	edge                    = 20.0
	titleHeight             = 52.0
	legendHeight            = 28.0
)

// box is a part of the picture.
type box struct{ left, top, right, bottom float64 }

// Write draws the figure.
func (f Figure) Write(w io.Writer) error {
	columns := max(1, min(f.Columns, len(f.Panels)))
	rows := (len(f.Panels) + columns - 1) / columns
	// The width suffices for title and legend, even with few panels.
	width := max(2, float64(columns))*panelWidth + 2*edge
	top := edge + titleHeight + legendHeight
	height := top + float64(rows)*panelHeight + edge

	c := &canvas{out: &bytes.Buffer{}}
	c.open(width, height, f.Title, f.Subtitle)
	c.text(edge, edge+18, "title", "start", f.Title)
	c.text(edge, edge+38, "subtitle", "start", f.Subtitle)
	f.legend(c, edge, edge+titleHeight+12)
	for i, p := range f.Panels {
		left := edge + float64(i%columns)*panelWidth
		upper := top + float64(i/columns)*panelHeight
		p.draw(c, box{left + 46, upper + 30, left + panelWidth - 14, upper + panelHeight - 48})
	}
	c.close()
	_, err := w.Write(c.out.Bytes())
	return err
}

// letter is the estimated width of a character of the legend. The width of text in SVG is unknown
// before a viewer displays the text.
const letter = 6.6

func (f Figure) legend(c *canvas, x, y float64) {
	if len(f.Panels) == 0 {
		return
	}
	for i, name := range f.Legend {
		f.Panels[0].key(c, i, x+6, y)
		c.text(x+17, y+4, "label", "start", name)
		x += 17 + letter*float64(len([]rune(name))) + 18
	}
	if f.Reference != "" {
		c.line(x, y, x+18, y, f.Panels[0].referenceClass())
		c.text(x+24, y+4, "label", "start", f.Reference)
	}
}

// frame draws a panel's title, the axis of values with its grid, and the base.
func frame(c *canvas, area box, title string, y Axis) {
	c.text(area.left, area.top-12, "panel", "start", title)
	for _, tick := range y.Ticks {
		at := y.at(tick, area.bottom, area.top)
		c.line(area.left, at, area.right, at, "grid")
		c.text(area.left-7, at+4, "tick", "end", number(tick))
	}
	c.line(area.left, area.bottom, area.right, area.bottom, "axis")
	c.turned(area.left-36, (area.top+area.bottom)/2, "label", y.Label)
}
