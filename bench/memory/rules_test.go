// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// native is a GPU of 16 GiB with contexts of 512 MiB.
var native = sizes{
	context: gib / 2,
	pieces:  map[string]uint64{"ctx": gib / 2},
	reach:   map[string]uint64{"alloc": 31 * gib / 2, "alloc-v1": 4 * gib, "vmm": 31 * gib / 2, "ctx": 31 * gib / 2},
}

// done returns the result of a process that filled until the driver refused a piece of size
// refused.
func done(way string, granted, refused uint64) Fill {
	return Fill{Way: way, Granted: granted, Pieces: 1, Refused: refused, Refusals: 1, Context: true, Error: outOfMemory}
}

func contexts(pieces uint64) Fill {
	return Fill{Way: "ctx", Granted: 12345, Pieces: pieces, Refusals: 1, Context: true, Error: outOfMemory}
}

func TestJudge(t *testing.T) {
	noContext := Fill{Way: "alloc", Error: outOfMemory, Call: "cuDevicePrimaryCtxRetain"}
	neverRefused := Fill{Way: "managed", Granted: gib, Pieces: 1, Context: true}
	crashed := Fill{Way: "alloc", Error: -1, Message: "signal: segmentation fault"}
	tests := []struct {
		name      string
		limit     uint64
		peak      uint64
		fills     []Fill
		granted   uint64
		shortfall uint64
		refused   bool
		broken    string
	}{
		{"the whole limit", 2 * gib, 2 * gib, []Fill{done("alloc", 3*gib/2, 1)}, 3 * gib / 2, 0, false, ""},
		{"a little less", 2 * gib, 2*gib - mib, []Fill{done("alloc", 3*gib/2-mib, 1)}, 3*gib/2 - mib, mib, false, ""},
		{"a byte too many held", 2 * gib, 2*gib + 1, []Fill{done("alloc", 3*gib/2, 1)}, 3 * gib / 2, 0, false,
			"held 1 bytes more than the limit"},
		{"more than 1 % left", 1000 * mib, 989 * mib, []Fill{done("alloc", 477*mib, 1)}, 477 * mib, 11 * mib, true,
			"refused what would have fit: 11534336 bytes were left"},
		{"less left than requested", 1000 * mib, 1000 * mib, []Fill{done("vmm", 457*mib, 32*mib)}, 457 * mib, 0, false, ""},
		{"another error", 2 * gib, 2 * gib, []Fill{{Way: "alloc", Granted: 3 * gib / 2, Refused: 1, Refusals: 1, Context: true, Error: -1}},
			3 * gib / 2, 0, false, "ended with error -1, not 2"},
		{"never refused", 2 * gib, 3 * gib / 2, []Fill{neverRefused}, gib, gib / 2, true, "ended with error 0, not 2"},
		{"crashed", gib, 0, []Fill{crashed}, 0, gib, true, "ended with error -1, not 2"},
		{"unseen", gib, 0, []Fill{done("alloc", gib/2, 1)}, gib / 2, 0, false, "the judge saw nothing held"},

		// A driver grants or refuses a whole context. A rest smaller than a context remains
		// ungranted.
		{"contexts", 37 * gib / 10, 7 * gib / 2, []Fill{contexts(6)}, 3 * gib, 0, false, ""},
		{"a context too few", 37 * gib / 10, 3 * gib, []Fill{contexts(5)}, 5 * gib / 2, 37*gib/10 - 3*gib, true,
			"refused what would have fit: 751619276 bytes were left"},

		// 32-bit addresses end at 4 GiB, with or without a limit.
		{"all that the way reaches", 15 * gib, 9 * gib / 2, []Fill{done("alloc-v1", 4*gib, 1)}, 4 * gib, 0, false, ""},
		{"less than the way reaches", 15 * gib, 7 * gib / 2, []Fill{done("alloc-v1", 3*gib, 1)}, 3 * gib, 23 * gib / 2, true,
			"refused what would have fit: 12348030976 bytes were left"},

		{"several", 4 * gib, 4 * gib, []Fill{done("vmm", gib, 2*mib), contexts(1), done("alloc", gib, 1)}, 5 * gib / 2, 0, false, ""},
		{"several, the last could have had more", 4 * gib, 7 * gib / 2,
			[]Fill{done("vmm", gib, 2*mib), contexts(1), done("alloc", gib/2, 1)}, 2 * gib, gib / 2, true,
			"refused what would have fit: 536870912 bytes were left"},
		{"no room for the last one's context", gib, gib, []Fill{done("alloc", gib/2, 1), noContext}, gib / 2, 0, false, ""},
		{"room for the last one's context", 2 * gib, gib, []Fill{done("alloc", gib/2, 1), noContext}, gib / 2, gib, true,
			"refused 1 contexts that would have fit"},
		{"contexts refused that fit", 3 * gib, 3 * gib, []Fill{noContext, noContext, done("alloc", 5*gib/2, 1)}, 5 * gib / 2, 0, true,
			"refused 2 contexts that would have fit"},
		{"contexts refused that do not", gib, gib, []Fill{noContext, done("alloc", 0, 1), done("vmm", 0, 2*mib)}, 0, 0, false, ""},
		{"the first wrong answer counts", gib, gib,
			[]Fill{done("vmm", 0, 2*mib), {Way: "alloc", Error: 700, Context: true}, done("alloc", 0, 1)}, 0, 0, false,
			"ended with error 700, not 2"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := judge("way", test.limit, physical{peak: test.peak}, test.fills, native)
			if got.Granted != test.granted || got.Shortfall != test.shortfall {
				t.Errorf("granted %d, short of %d, want %d and %d", got.Granted, got.Shortfall, test.granted, test.shortfall)
			}
			if got.RefusedWithinLimit != test.refused || got.Broken != test.broken {
				t.Errorf("refused within limit %v, broken %q, want %v and %q",
					got.RefusedWithinLimit, got.Broken, test.refused, test.broken)
			}
		})
	}
}

// TestJudgeByWhatIsHeld judges processes for which the driver holds 12 MiB in addition to the
// granted memory.
func TestJudgeByWhatIsHeld(t *testing.T) {
	fills := []Fill{done("alloc", 476*mib, 1)}
	if got := judge("way", 1000*mib, physical{1000 * mib, 1000 * mib}, fills, native); got.Shortfall != 0 || got.Broken != "" {
		t.Errorf("short of %d, broken %q", got.Shortfall, got.Broken)
	}
	if got := judge("way", 1000*mib, physical{1000 * mib, 989 * mib}, fills, native); got.Shortfall != 11*mib || got.Broken == "" {
		t.Errorf("short of %d, broken %q", got.Shortfall, got.Broken)
	}
}

// TestJudgeVaguely checks a driver whose NVML does not list the memory of processes. At any
// limit, a process may then lose the size of its context again.
func TestJudgeVaguely(t *testing.T) {
	small := sizes{context: 100 * mib, vague: true}
	tests := []struct {
		name    string
		granted []uint64
		limit   uint64
		broken  bool
	}{
		{"as much as a context is left", []uint64{800 * mib}, 1000 * mib, false},
		{"more", []uint64{800*mib - 1}, 1000 * mib, true},
		{"less than 1 % of the limit, and more than a context", []uint64{15*gib - 201*mib}, 15 * gib, true},
		{"two processes", []uint64{300 * mib, 300 * mib}, 1000 * mib, false},
		{"two processes, more", []uint64{300 * mib, 299 * mib}, 1000 * mib, true},
	}
	for _, test := range tests {
		var fills []Fill
		for _, granted := range test.granted {
			fills = append(fills, done("alloc", granted, 1))
		}
		if got := judge("way", test.limit, physical{peak: test.limit}, fills, small); (got.Broken != "") != test.broken {
			t.Errorf("%s: short of %d, broken %q", test.name, got.Shortfall, got.Broken)
		}
	}
}

func TestSummarize(t *testing.T) {
	points := []Point{
		{Way: "alloc", Limit: 2 * gib, PhysicalPeak: 2 * gib, Error: 2, Shortfall: gib / 200},
		{Way: "vmm", Limit: gib, PhysicalPeak: gib, Error: 2},
		{Profile: "future", Way: "vmm", Limit: gib, PhysicalPeak: gib, Error: 2},
		{Way: "alloc", Limit: gib, PhysicalPeak: gib + 7, Error: 2, Broken: "held more"},
		{Way: "alloc", Limit: gib, PhysicalPeak: gib + 5, Error: 1, Shortfall: gib / 4, RefusedWithinLimit: true, Broken: "error"},
	}
	want := []Summary{
		{Way: "alloc", Points: 3, Broken: 2, OverLimit: 7, ShortfallPercent: 25, RefusedWithinLimit: 1, Errors: []int{2, 1}},
		{Way: "vmm", Points: 1, Errors: []int{2}},
		{Way: "vmm", Profile: "future", Points: 1, Errors: []int{2}},
	}
	if diff := cmp.Diff(want, summarize(points)); diff != "" {
		t.Error(diff)
	}
	if got := summarize(nil); got != nil {
		t.Errorf("without results: %v", got)
	}
}
