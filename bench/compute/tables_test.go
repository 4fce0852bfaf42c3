// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTables checks the table for each card, with the reasons for shares below the limits.
func TestTables(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tables.md")
	records := []Record{
		on("r580-h200+h200", alone("a", func(t *Tenant) { t.ErrorPoints, t.MeteredPercent = -1, known(30.5) })),
		on("r580-h200+one-queue", group(1, 0, -9, 0.5)),
		on("r580-h200+h200", alone("b", func(t *Tenant) { t.ErrorPoints = 0.5 })),
	}
	if err := writeTables(path, records); err != nil {
		t.Fatal(err)
	}
	want := `<!-- written by make bench-compute -->

| driver and card | containers | mean error | most above | most below | metered, off by | latency, p99: limited, time-slicing |
|---|---|---|---|---|---|---|
| r580-h200+h200 | 2 | 0.75 | 0.50 | 1.00 | 0.50 | – |
| r580-h200+one-queue | 2 | 0.00 | 0.50 | 0.00 | 0.00 | – |

### r580-h200+h200

| work | containers | mean error | most above | most below | metered, off by | cause of the shortfall |
|---|---|---|---|---|---|---|
| alone, async | 2 | 0.75 | 0.50 | 1.00 | 0.50 |  |

### r580-h200+one-queue

| work | containers | mean error | most above | most below | metered, off by | cause of the shortfall |
|---|---|---|---|---|---|---|
| pair | 2 | 4.75 | 0.50 | 9.00 | 0.00 | ` + short["one-queue"].why + ` |
`
	got, err := os.ReadFile(path)
	if diff := cmp.Diff(want, string(got)); err != nil || diff != "" {
		t.Errorf("error %v: %s", err, diff)
	}
}
