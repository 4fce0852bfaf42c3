// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"os"
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

// A new version of a limited function never passes.
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
