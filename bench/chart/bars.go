// SPDX-License-Identifier: Apache-2.0

package chart

import "math"

// Bars is a panel of groups of bars.
type Bars struct {
	Title  string
	X      string // label of the groups
	Y      Axis
	Groups []Group
}

// Group is bars side by side, one for each series.
type Group struct {
	Label string
	Bars  []Bar // by index of the legend
}

// Bar is a value and, unless Mark is NaN, a mark for comparison.
type Bar struct{ Value, Mark float64 }

// widestBar limits the width of bars in panels with few bars.
const widestBar = 34.0

func (b Bars) draw(c *canvas, area box) {
	frame(c, area, b.Title, b.Y)
	room := (area.right - area.left) / float64(max(1, len(b.Groups)))
	for i, g := range b.Groups {
		middle := area.left + (float64(i)+0.5)*room
		width := min(widestBar, room*0.8/float64(max(1, len(g.Bars))))
		left := middle - width*float64(len(g.Bars))/2
		for j, bar := range g.Bars {
			b.drawBar(c, area, bar, j, left+float64(j)*width, width)
		}
		c.text(middle, area.bottom+16, "tick", "middle", g.Label)
	}
	c.text((area.left+area.right)/2, area.bottom+34, "label", "middle", b.X)
}

func (b Bars) drawBar(c *canvas, area box, bar Bar, index int, left, width float64) {
	top := b.Y.at(min(bar.Value, b.Y.Max), area.bottom, area.top)
	c.rect(left+1, top, width-2, area.bottom-top, "bar "+series(index))
	above := top
	if !math.IsNaN(bar.Mark) {
		at := b.Y.at(bar.Mark, area.bottom, area.top)
		c.line(left-1, at, left+width+1, at, "mark")
		above = min(above, at)
	}
	c.text(left+width/2, above-4, "value", "middle", short(bar.Value))
}

func (Bars) key(c *canvas, index int, x, y float64) { c.rect(x-5, y-5, 10, 10, "bar "+series(index)) }

func (Bars) referenceClass() string { return "mark" }
