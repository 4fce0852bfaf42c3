// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/gpusim/simtest"
)

// TestAbsentWays checks that the runner records, and does not measure, ways that a profile's driver
// does not have.
func TestAbsentWays(t *testing.T) {
	simtest.Build(t)
	simtest.Workload(t, "fill")
	build, err := filepath.Abs("../../build")
	if err != nil {
		t.Fatal(err)
	}
	profiles, err := profilesIn("../../gpusim/profiles")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]Absent{
		"r535-h100":   {{"ctx-v4", "r535-h100", "cuCtxCreate_v4"}, {"green", "r535-h100", "cuDeviceGetDevResource"}},
		"r550-4060ti": {{"ctx-v4", "r550-4060ti", "cuCtxCreate_v4"}},
	}
	for _, p := range profiles {
		t.Run(p.name, func(t *testing.T) {
			r, err := suite{build, t.TempDir(), unlimited{}}.runner("alone", p, 0)
			if err != nil {
				t.Fatal(err)
			}
			ways := []string{"ctx", "ctx-v4", "green", exactWay}
			if err := r.measureNative(t.Context(), ways); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want[p.name], r.absent); diff != "" {
				t.Error(diff)
			}
			if there := r.those(ways); len(there)+len(r.absent) != len(ways) || !slices.Contains(there, "ctx") || r.native.context == 0 {
				t.Errorf("the driver has %q, and contexts of %d bytes", there, r.native.context)
			}
		})
	}
}

// TestTableListsAbsentWays checks that the table lists each absent way.
func TestTableListsAbsentWays(t *testing.T) {
	var table strings.Builder
	if err := writeTable(&table, findings{absent: []Absent{{"green", "old", "cuGreenCtxCreate"}}}, nil); err != nil {
		t.Fatal(err)
	}
	if want := "left out: old: green, as the driver has no cuGreenCtxCreate\n"; !strings.HasSuffix(table.String(), want) {
		t.Errorf("got %q, want %q at its end", &table, want)
	}
}
