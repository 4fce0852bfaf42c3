// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

var figures = map[string]Figure{
	"lines.svg": {
		Title: "Lines <and> more", Subtitle: "one is missing", Legend: []string{"20 µs", "2 ms"}, Reference: "limit", Columns: 2,
		Panels: []Panel{
			Lines{Title: "a", X: Axis{"x", 0, 100, []float64{0, 50}}, Y: Axis{"y", -4, 4, []float64{-4, 0, 4}},
				Series:    [][]Point{{{0, 0}, {50, 1.5}}, {{0, -1}, {50, 4}}},
				Reference: []Point{{0, 0}, {100, 0}}, Band: [2]float64{-2, 2}},
			Lines{Title: "b", X: Axis{"x", 0, 100, nil}, Y: Axis{"y", 0, 1, nil}, Series: [][]Point{nil, {{1, 1}}}},
			Lines{Title: "c", X: Axis{"x", 0, 1, nil}, Y: Axis{"y", 0, 1, nil}},
		},
	},
	"bars.svg": {
		Title: "Bars", Legend: []string{"first", "second"}, Reference: "mark", Columns: 3,
		Panels: []Panel{
			Bars{Title: "pair", X: "limits", Y: Axis{"%", 0, 100, []float64{0, 100}}, Groups: []Group{
				{"30 / 60", []Bar{{29.5, 30}, {61, 60}}},
				{"too high", []Bar{{120, math.NaN()}}},
			}},
		},
	},
	"empty.svg": {Title: "Nothing", Legend: []string{"a"}},
}

// TestFigures compares figures with approved figures.
func TestFigures(t *testing.T) {
	for name, figure := range figures {
		var got bytes.Buffer
		if err := figure.Write(&got); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got.String()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if err := wellFormed(got.Bytes()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func wellFormed(document []byte) error {
	decoder := xml.NewDecoder(bytes.NewReader(document))
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func TestNumbers(t *testing.T) {
	tests := []struct {
		value         float64
		number, above string
	}{
		{0, "0", "0.0"}, {-0.001, "0", "-0.0"}, {1.005, "1", "1.0"}, {-2.5, "-2.5", "-2.5"}, {33.333, "33.33", "33.3"},
		{99.94, "99.94", "99.9"}, {99.96, "99.96", "100"}, {1234.5678, "1234.57", "1235"},
	}
	for _, test := range tests {
		if got := number(test.value); got != test.number {
			t.Errorf("number %v is %q, want %q", test.value, got, test.number)
		}
		if got := short(test.value); got != test.above {
			t.Errorf("%v above a bar is %q, want %q", test.value, got, test.above)
		}
	}
}
