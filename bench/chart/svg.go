// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
)

// style contains the colours for light and dark pages. The series' colours are distinguishable with
// any colour vision, and each series has its own marker.
const style = `
svg { background: #ffffff; font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
.page { fill: #ffffff; }
text { fill: #1f2328; font-size: 12px; }
.title { font-size: 18px; font-weight: 600; }
.subtitle, .label, .tick { fill: #59636e; }
.panel { font-size: 13px; font-weight: 600; }
.tick { font-size: 11px; }
.value { font-size: 9.5px; }
.grid { stroke: #d1d9e0; stroke-width: 0.7; }
.axis { stroke: #59636e; stroke-width: 1; }
.band { fill: #dafbe1; }
.reference { stroke: #59636e; stroke-width: 1.2; stroke-dasharray: 4 3; fill: none; }
.mark { stroke: #1f2328; stroke-width: 2; }
.series { stroke-width: 1.6; fill: none; }
.s0 { color: #0072b2; } .s1 { color: #d55e00; } .s2 { color: #008a64; } .s3 { color: #a8327e; } .s4 { color: #8a6d00; }
.series { stroke: currentColor; } .bar, .marker { fill: currentColor; }
@media (prefers-color-scheme: dark) {
svg { background: #0d1117; } .page { fill: #0d1117; }
text { fill: #f0f6fc; } .subtitle, .label, .tick { fill: #9198a1; }
.grid { stroke: #3d444d; } .axis, .reference { stroke: #9198a1; } .band { fill: #12351d; } .mark { stroke: #f0f6fc; }
.s0 { color: #56b4e9; } .s1 { color: #ff8c42; } .s2 { color: #2fc99a; } .s3 { color: #e79fc9; } .s4 { color: #e6c229; }
}
`

// canvas writes SVG.
type canvas struct{ out *bytes.Buffer }

func (c *canvas) open(width, height float64, title, description string) {
	fmt.Fprintf(c.out, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%s\" height=\"%s\" viewBox=\"0 0 %s %s\" role=\"img\">\n",
		number(width), number(height), number(width), number(height))
	fmt.Fprintf(c.out, "<title>%s</title>\n<desc>%s</desc>\n<style>%s</style>\n", escape(title), escape(description), style)
	c.rect(0, 0, width, height, "page")
}

func (c *canvas) close() { c.out.WriteString("</svg>\n") }

func (c *canvas) text(x, y float64, class, anchor, text string) {
	fmt.Fprintf(c.out, "<text class=%q x=\"%s\" y=\"%s\" text-anchor=%q>%s</text>\n",
		class, number(x), number(y), anchor, escape(text))
}

// turned draws text that reads upwards, around its middle.
func (c *canvas) turned(x, y float64, class, text string) {
	fmt.Fprintf(c.out, "<text class=%q transform=\"translate(%s %s) rotate(-90)\" text-anchor=\"middle\">%s</text>\n",
		class, number(x), number(y), escape(text))
}

func (c *canvas) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(c.out, "<line class=%q x1=\"%s\" y1=\"%s\" x2=\"%s\" y2=\"%s\"/>\n",
		class, number(x1), number(y1), number(x2), number(y2))
}

func (c *canvas) rect(x, y, width, height float64, class string) {
	fmt.Fprintf(c.out, "<rect class=%q x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\"/>\n",
		class, number(x), number(y), number(width), number(max(0, height)))
}

func (c *canvas) path(points []Point, class string) {
	if len(points) == 0 {
		return
	}
	fmt.Fprintf(c.out, "<polyline class=%q points=\"", class)
	for i, p := range points {
		if i > 0 {
			c.out.WriteByte(' ')
		}
		fmt.Fprintf(c.out, "%s,%s", number(p.X), number(p.Y))
	}
	c.out.WriteString("\"/>\n")
}

// markers are the series' shapes: circle, square, diamond and two triangles.
var markers = [MaxSeries]string{
	"M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
	"M-3.5 -3.5h7v7h-7z",
	"M0 -4.8l4.8 4.8l-4.8 4.8l-4.8 -4.8z",
	"M0 -4.6l4.4 7.8h-8.8z",
	"M0 4.6l4.4 -7.8h-8.8z",
}

func (c *canvas) marker(index int, x, y float64) {
	fmt.Fprintf(c.out, "<path class=\"marker %s\" transform=\"translate(%s %s)\" d=%q/>\n",
		series(index), number(x), number(y), markers[index%MaxSeries])
}

// series returns the CSS class of a series.
func series(index int) string { return fmt.Sprintf("s%d", index%MaxSeries) }

// number formats a number as short as possible, rounded to hundredths.
func number(v float64) string {
	rounded := math.Round(v*100) / 100
	if rounded == 0 {
		return "0" // not -0
	}
	return strconv.FormatFloat(rounded, 'f', -1, 64)
}

// short formats the label above a bar.
func short(v float64) string {
	if math.Abs(v) >= 99.95 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

func escape(text string) string {
	var out bytes.Buffer
	if err := xml.EscapeText(&out, []byte(text)); err != nil {
		panic(err) // a bytes.Buffer accepts all writes
	}
	return out.String()
}
