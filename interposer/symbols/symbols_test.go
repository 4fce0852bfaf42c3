// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"os"
	"path"
	"slices"
	"testing"
)

// TestFamilies checks the names of families_test.txt, as family_test.c does for the C code.
func TestFamilies(t *testing.T) {
	text, err := os.ReadFile("families_test.txt")
	if err != nil {
		t.Fatal(err)
	}
	cases := lines(string(text))
	if len(cases) < 30 {
		t.Fatalf("families_test.txt has %d names", len(cases))
	}
	for _, c := range cases {
		if got := familyOf(c[0]); got != Treatment(c[1]) {
			t.Errorf("%s: %s, want %s", c[0], got, c[1])
		}
	}
}

// TestNewVersionsOfOwnFunctions checks that a new version of a limited function never passes.
func TestNewVersionsOfOwnFunctions(t *testing.T) {
	count := 0
	for _, fields := range lines(cudaText) {
		if len(fields) != 2 || fields[1] != "own" {
			continue
		}
		count++
		for _, suffix := range []string{"_v9", "_v9_ptsz", "_v10_ptds"} {
			name := stem(fields[0]) + suffix
			if got := Treat(name); got == Pass {
				t.Errorf("%s: %s", name, got)
			}
		}
	}
	if count < 150 {
		t.Errorf("libcuda.txt has %d functions of our own", count)
	}
}

// reviewed lists the functions that pass although their names suggest memory or work, with the
// reasons.
var reviewed = []struct{ pattern, reason string }{
	{"cuCheckpointProcessGetRestoreThreadId", "a query"},
	{"cuCheckpointProcessRestore", "restores the memory that the process had before the checkpoint"},
	{"cuGraphAdd*", "edits a graph, which is charged when it becomes executable and when it is launched"},
	{"cuGraphMemcpyNode*", "edits a graph"},
	{"cuGraphMemsetNode*", "edits a graph"},
	{"cuGraphExecMemcpyNode*", "edits an executable graph, which is charged when it is launched"},
	{"cuGraphExecMemsetNode*", "edits an executable graph, which is charged when it is launched"},
	{"cuImportExternalSemaphore", "needs no memory"},
	{"cuIpcOpenEventHandle", "needs no memory"},
	{"cuLogicalEndpointImport", "the memory belongs to the exporter"},
	{"cuMemAllocHost*", "memory of the host"},
	{"cuMemHostAlloc", "memory of the host"},
	{"cuMemBatchDecompressAsync*", "runs on the decompression engine, beside the multiprocessors"},
	{"cuMulticastCreate", "needs no memory before memory is bound"},
}

// TestForwardedFunctionsAreReviewed checks that each function that passes has a name without memory
// or work, or is in the list of reviewed functions. A function that a new driver adds to libcuda.txt
// therefore needs a review.
func TestForwardedFunctionsAreReviewed(t *testing.T) {
	used := make(map[string]bool)
	for _, fields := range lines(cudaText) {
		if len(fields) != 2 || fields[1] != "forward" || familyOf(fields[0]) != Refuse {
			continue
		}
		i := slices.IndexFunc(reviewed, func(r struct{ pattern, reason string }) bool {
			match, err := path.Match(r.pattern, fields[0])
			return err == nil && match
		})
		if i < 0 {
			t.Errorf("%s passes, but may allocate memory or launch work: charge the call, or add the reason to the list", fields[0])
			continue
		}
		used[reviewed[i].pattern] = true
	}
	for _, r := range reviewed {
		if !used[r.pattern] {
			t.Errorf("no function that passes matches %s", r.pattern)
		}
	}
}

func TestTreat(t *testing.T) {
	for name, want := range map[string]Treatment{
		"cuFrobnicate":            Pass,
		"cuMemAllocFrob":          Refuse,
		"cuMemFree_v3":            Refuse,
		"cuMemFree_v":             Pass,
		"cuMemFreeFrob":           Pass,
		"cuMemGetInfo_v3":         Refuse,
		"cuInit_v2":               Refuse,
		"cuGetProcAddress_v3":     Refuse,
		"cuStreamBeginCapture_v3": Capture,
		"cuLaunchHostFunc_v3":     Pass,
		"cuCtxGetDevice_v3":       Pass,
		"":                        Pass,
	} {
		if got := Treat(name); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
}
