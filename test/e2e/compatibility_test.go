// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

// update makes TestReadmes write the table.
var update = flag.Bool("e2e.update", false, "write the table in docs/reference/compatibility.md")

const (
	compatibility = "../../docs/reference/compatibility.md"
	tableBegin    = "<!-- Written by `go test ./test/e2e -run TestReadmes -e2e.update`. -->\n"
	tableEnd      = "<!-- end -->\n"
)

// row is a line of the table.
type row struct {
	of, asked, got, seen string
	// These are the oracle's measurements of each GPU of each pod.
	held []uint64
	had  []float64
	// refused reports whether the programs were refused more memory.
	refused bool
}

// fixed returns the cells that are the same in each run.
func (r row) fixed() []string { return []string{r.of, r.asked, r.got, r.seen} }

func (r row) line() string {
	measured := mebibytes(slices.Max(r.held))
	if r.refused {
		measured += ", then out of memory"
	}
	low, high := fmt.Sprintf("%.1f", slices.Min(r.had)), fmt.Sprintf("%.1f", slices.Max(r.had))
	time := low + " %"
	if low != high {
		time = low + " to " + high + " %"
	}
	return "| " + strings.Join(append(r.fixed(), measured, time), " | ") + " |\n"
}

// merged returns one row for equal pods.
func merged(rows []row) row {
	all := rows[0]
	for _, r := range rows[1:] {
		all.held = append(all.held, r.held...)
		all.had = append(all.had, r.had...)
	}
	return all
}

// asked returns the request of a pod, in its own dialect.
func asked(pod *corev1.Pod) string {
	var words []string
	for name, quantity := range pod.Spec.Containers[0].Resources.Limits {
		words = append(words, fmt.Sprintf("`%s: %d`", name, quantity.Value()))
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}

// given returns the allocation of a pod's container from the node's files.
func given(t *testing.T, pod *corev1.Pod) []placement.Device {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(bed.ContainerFiles(pod, pod.Spec.Containers[0].Name), "assignment.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Allocation placement.Allocation `json:"allocation"`
	}
	if err := json.Unmarshal(raw, &file); err != nil || len(file.Allocation.Devices) == 0 {
		t.Fatalf("the assignment of %s names no GPU: %v: %s", pod.Name, err, raw)
	}
	return file.Allocation.Devices
}

func describeGiven(devices []placement.Device) string {
	parts := make([]string, len(devices))
	for i, d := range devices {
		parts[i] = fmt.Sprintf("%s and %g %% of a GPU", mebibytes(d.MemoryBytes), float64(d.ComputePPM)/10_000)
	}
	if len(parts) > 1 && len(slices.Compact(slices.Clone(parts))) == 1 {
		return fmt.Sprintf("%s, on %d GPUs", parts[0], len(parts))
	}
	return strings.Join(parts, ", ")
}

// mebibytes rounds to a tenth.
func mebibytes(bytes uint64) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(bytes)/mib), ".0") + " MiB"
}

func table(rows []row) string {
	text := "| README | requests | gets | sees | held of each GPU | time of each GPU |\n|---|---|---|---|---|---|\n"
	for _, r := range rows {
		text += r.line()
	}
	return text
}

// checkTable compares the fixed columns with the published columns, or publishes them.
func checkTable(t *testing.T, rows []row) {
	t.Helper()
	raw, err := os.ReadFile(compatibility)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(raw), tableBegin)
	published, after, ended := strings.Cut(rest, tableEnd)
	if !found || !ended {
		t.Fatalf("%s has no place for the table, between %q and %q", compatibility, tableBegin, tableEnd)
	}
	if *update {
		if err := os.WriteFile(compatibility, []byte(before+tableBegin+table(rows)+tableEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, r := range rows {
		if line := "| " + strings.Join(r.fixed(), " | ") + " | "; !strings.Contains(published, line) {
			t.Errorf("%s does not have, as -e2e.update would write it:\n%s", compatibility, line)
		}
	}
	if lines := strings.Count(published, "\n"); lines != len(rows)+2 {
		t.Errorf("%s has %d lines in its table, want %d", compatibility, lines, len(rows)+2)
	}
}
