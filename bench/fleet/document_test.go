// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDocument(t *testing.T) {
	o := options{tables: filepath.Join(t.TempDir(), "tables.md"), figure: filepath.Join(t.TempDir(), "figure.svg")}
	all := []filled{
		{List: "default", Policy: "random", At100: 86.04, At130: 87, Published: []float64{86.3, 87.5}},
		{List: "default", Policy: byFragmentation, At100: 95, At130: 96},
		{List: "other", Policy: "random", At100: 1, At130: 2},
	}
	modes := []result{{Mode: "sums", Policy: "binpack", Resources: "memory", Refusals: 948.2, Utilisation: 0.27, WaitP99: 559.1, Waiting: 3}}
	if err := document(o, all, modes); err != nil {
		t.Fatal(err)
	}
	for path, wants := range map[string][]string{
		o.tables: {
			"| list | random | bestfit | fgd | fragmentation |", "| default | 86.0 / 87.0 (86.3 / 87.5) | 0.0 / 0.0 | 0.0 / 0.0 | 95.0 / 96.0 |",
			"| other | 1.0 / 2.0 |", "| memory | sums | binpack | 948.2 | 27.0 % | 0.0 % | 559 s | 3 |",
		},
		o.figure: {"<svg", "default", "other", "published", "130 %"},
	} {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range wants {
			if !strings.Contains(string(content), want) {
				t.Errorf("%s lacks %q:\n%s", path, want, content)
			}
		}
	}
	if err := document(options{figure: filepath.Join(t.TempDir(), "none", "x.svg")}, all, nil); err == nil {
		t.Error("no error for a figure that cannot be written")
	}
	if err := document(options{figure: filepath.Join(t.TempDir(), "none", "x.svg")}, nil, modes); err != nil {
		t.Errorf("without a trace: %v", err)
	}
}
