// Package chart draws benchmarks' results as SVG: small panels side by side,
// with lines or bars, readable on light and dark pages.
package chart

import (
	"bytes"
	"io"
)

// MaxSeries is the number of series that can be told apart.
const MaxSeries = 5

// Figure is a picture of panels that share a legend.
type Figure struct {
	Title, Subtitle string
	// Legend names the series, by index: at most MaxSeries.
	Legend []string
	// Reference names the dashed line, or the marks on bars; "" if there are none.
	Reference string
	Columns   int
	Panels    []Panel
}

// Panel is one set of axes: [Lines] or [Bars]. Those of a figure are of one kind.
type Panel interface {
	draw(c *canvas, area box)
	// key draws how a series looks, for the legend.
	key(c *canvas, index int, x, y float64)
	// referenceClass is how the reference looks.
	referenceClass() string
}

// Axis is a linear scale.
type Axis struct {
	Label    string
	Min, Max float64
	Ticks    []float64
}

// at is where a value lies on an axis drawn from one coordinate to another.
func (a Axis) at(v, from, to float64) float64 {
	return from + (v-a.Min)/(a.Max-a.Min)*(to-from)
}

// Sizes in pixels.
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
	// Wide enough for title and legend, whatever the panels are.
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

// letter is the width of a character of the legend, as a guess: SVG cannot
// measure text before it is shown.
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
