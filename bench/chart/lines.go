// SPDX-License-Identifier: Apache-2.0

package chart

// Point is a point of a line.
type Point struct{ X, Y float64 }

// Lines is a panel of lines, one for each series that has points.
type Lines struct {
	Title  string
	X, Y   Axis
	Series [][]Point // by index of the legend, in the order of X
	// Reference is a dashed line beneath the lines.
	Reference []Point
	// Band is a shaded band between two values of Y. If both values are 0, the panel has no band.
	Band [2]float64
}

func (l Lines) draw(c *canvas, area box) {
	if l.Band != [2]float64{} {
		top, bottom := l.Y.at(l.Band[1], area.bottom, area.top), l.Y.at(l.Band[0], area.bottom, area.top)
		c.rect(area.left, top, area.right-area.left, bottom-top, "band")
	}
	frame(c, area, l.Title, l.Y)
	for _, tick := range l.X.Ticks {
		c.text(l.X.at(tick, area.left, area.right), area.bottom+16, "tick", "middle", number(tick))
	}
	c.text((area.left+area.right)/2, area.bottom+34, "label", "middle", l.X.Label)
	c.path(l.place(l.Reference, area), "reference")
	for i, points := range l.Series {
		placed := l.place(points, area)
		c.path(placed, "series "+series(i))
		for _, p := range placed {
			c.marker(i, p.X, p.Y)
		}
	}
}

// place converts values to coordinates.
func (l Lines) place(points []Point, area box) []Point {
	placed := make([]Point, len(points))
	for i, p := range points {
		placed[i] = Point{l.X.at(p.X, area.left, area.right), l.Y.at(p.Y, area.bottom, area.top)}
	}
	return placed
}

func (Lines) key(c *canvas, index int, x, y float64) { c.marker(index, x, y) }

func (Lines) referenceClass() string { return "reference" }
